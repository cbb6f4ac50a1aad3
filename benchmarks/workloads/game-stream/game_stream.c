/* A stream of frames over UDP, against TCP on a narrow link.
 *
 *     game_stream send SERVER PORT SECONDS constant|adaptive MBIT LEAST_MBIT MOST_MBIT \
 *         COMPETITOR CAPACITY_MBIT FILE
 *     game_stream receive PORT COMPETITOR_ADDRESS COMPETITOR_PORT
 *     game_stream compete PORT SERVER
 *
 * `send` sends HZ frames a second, each in packets with an RTP header (RFC 3550), spread over three
 * quarters of a frame's time. COMPETITOR is none, cubic or bbr: then iperf3 sends to the receiver's
 * machine in the middle third of SECONDS, started by `compete` when `receive` asks for it.
 * CAPACITY_MBIT, 0 for no limit, is only written down.
 * `receive` counts in bins of half a second, answers echoes, and reports every 50 ms. At the end it
 * hands its record to the sender over TCP, which writes FILE, JSON.
 *
 * The adaptive sender is GCC-like (draft-ietf-rmcat-gcc-02), not GCC: see `adapt`.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HZ 60
#define PAYLOAD 1200          /* bytes of UDP: what WebRTC takes for a packet */
#define ON_WIRE 42            /* bytes of Ethernet, IPv4 and UDP headers */
#define PACED 0.75            /* share of a frame's time in which its packets leave */
#define MOST_SECONDS 3600
#define MOST_FRAMES (MOST_SECONDS * HZ)
#define BIN_NS 500000000LL
#define REPORT_NS 50000000LL
#define REPORTS 10            /* reports in the half second that rates and trends are of */
#define ECHO_NS 100000000LL
#define SECOND_NS 1000000000LL
#define TOGETHER_NS 250000LL  /* packets that are due so soon leave with the one that is */
#define IPERF_PORT "5201"
#define LINE 256

enum { MEDIA = 96, ECHO = 97, REPORT = 98 };

struct packet {
    uint8_t version, type;
    uint16_t number16;
    uint32_t timestamp, source;      /* so far RFC 3550's fixed header */
    uint32_t number, frame;
    uint16_t index, count;
    int64_t sent_ns;
    int64_t delay_ns, rate_bit;      /* of a report */
    uint32_t expected, received;
} __attribute__((packed));

static void fail(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fprintf(stderr, "game_stream: ");
    vfprintf(stderr, format, values);
    fprintf(stderr, errno ? ": %s\n" : "\n", strerror(errno));
    va_end(values);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static struct sockaddr_in address_of(const char *text, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, text, &address.sin_addr) != 1)
        fail("%s is no IPv4 address", text);
    return address;
}

static int socket_at(int kind, int port)
{
    int one = 1, room = 4 << 20;
    int made = socket(AF_INET, kind | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = address_of("0.0.0.0", port);
    setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(made, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    if (made < 0 || bind(made, (struct sockaddr *)&address, sizeof address) != 0)
        fail("cannot have port %d", port);
    if (kind == SOCK_STREAM && listen(made, 4) != 0)
        fail("cannot listen at port %d", port);
    return made;
}

static int connected(int kind, const char *text, int port)
{
    struct sockaddr_in address = address_of(text, port);
    int made = socket(AF_INET, kind | SOCK_CLOEXEC, 0);
    if (made < 0 || connect(made, (struct sockaddr *)&address, sizeof address) != 0)
        fail("cannot reach %s at port %d", text, port);
    return made;
}

/* A line of a control connection, without its end; false where the other side has gone. */
static bool line_of(int connection, char *line)
{
    size_t length = 0;
    char sign;
    while (read(connection, &sign, 1) == 1) {
        if (sign == '\n') {
            line[length] = 0;
            return true;
        }
        if (length < LINE - 1)
            line[length++] = sign;
    }
    return false;
}

static void wait_until(int descriptor, int control, int64_t until_ns, struct pollfd found[2])
{
    int64_t left_ns = until_ns - now_ns();
    struct timespec left = {0};
    if (left_ns > 0)
        left = (struct timespec){left_ns / SECOND_NS, left_ns % SECOND_NS};
    found[0] = (struct pollfd){.fd = descriptor, .events = POLLIN};
    found[1] = (struct pollfd){.fd = control, .events = POLLIN};
    if (ppoll(found, 2, &left, NULL) < 0 && errno != EINTR)
        fail("cannot wait");
}

/* ---- the sender ---- */

struct sender {
    int media, control;
    int64_t began_ns;
    double rate_bit, least_bit, most_bit;
    bool adapts;
    /* what reports told: mean one-way delays (the clocks' offset is in each alike), oldest first */
    double delay_ms[REPORTS];
    int reports;
    double threshold_ms;
    int64_t report_ns, loss_ns;
    /* the record */
    double *rtt, *rtt_at, *target;
    int rtts, targets;
};

/* GCC-like control, by the receiver's reports. By delay, as section 5 of draft-ietf-rmcat-gcc-02:
 * the trend is how much the one-way delay grew in the last half second (least squares over its ten
 * reports; GCC: a Kalman filter over groups of packets), compared with an adaptive threshold of
 * 12.5 ms at first, K_u 0.01 and K_d 0.00018 per ms, 6 to 600 ms. Above it: 0.85 of the rate that
 * arrived. Below the negative: hold. Else: 8 % more a second, up to 1.5 times of what arrives. By
 * loss, as section 6: more than 10 % in half a second takes half of that share away, and more than
 * 2 % forbids an increase. */
static void adapt(struct sender *my, const struct packet *report, int64_t now)
{
    double dt_ms = my->report_ns ? (now - my->report_ns) / 1e6 : REPORT_NS / 1e6;
    double arrived = (double)report->rate_bit;
    my->report_ns = now;
    memmove(my->delay_ms, my->delay_ms + 1, (REPORTS - 1) * sizeof *my->delay_ms);
    my->delay_ms[REPORTS - 1] = report->delay_ns / 1e6;
    if (++my->reports < REPORTS)
        return;
    double mean = 0, over = 0, under = 0;
    for (int i = 0; i < REPORTS; i++)
        mean += my->delay_ms[i] / REPORTS;
    for (int i = 0; i < REPORTS; i++) {
        double x = i - (REPORTS - 1) / 2.0;
        over += x * (my->delay_ms[i] - mean);
        under += x * x;
    }
    double trend_ms = over / under * REPORTS;
    double loss = report->expected ? 1 - (double)report->received / report->expected : 0;
    double size = fabs(trend_ms);
    if (size < my->threshold_ms + 15) { /* the draft: sudden jumps don't move the threshold */
        double gain = size < my->threshold_ms ? 0.00018 : 0.01;
        my->threshold_ms += fmin(dt_ms, 100) * gain * (size - my->threshold_ms);
        my->threshold_ms = fmin(fmax(my->threshold_ms, 6), 600);
    }
    if (trend_ms > my->threshold_ms)
        my->rate_bit = fmin(my->rate_bit, 0.85 * arrived);
    else if (trend_ms >= -my->threshold_ms && loss <= 0.02)
        my->rate_bit = fmin(my->rate_bit * pow(1.08, fmin(dt_ms / 1000, 1)),
                            fmax(1.5 * arrived, my->rate_bit));
    if (loss > 0.1 && now - my->loss_ns >= BIN_NS) {
        my->rate_bit *= 1 - 0.5 * loss;
        my->loss_ns = now;
    }
    my->rate_bit = fmin(fmax(my->rate_bit, my->least_bit), my->most_bit);
}

static void hear(struct sender *my, int most_rtts)
{
    struct packet got;
    ssize_t length;
    while ((length = recv(my->media, &got, sizeof got, MSG_DONTWAIT)) >= 0) {
        int64_t now = now_ns();
        if (length < (ssize_t)sizeof got)
            continue;
        if (got.type == ECHO && my->rtts < most_rtts) {
            my->rtt_at[my->rtts] = (got.sent_ns - my->began_ns) / 1e9;
            my->rtt[my->rtts++] = (now - got.sent_ns) / 1e6;
        } else if (got.type == REPORT && my->adapts) {
            adapt(my, &got, now);
        }
    }
}

static void put(struct sender *my, struct packet *head, size_t length)
{
    static char bytes[PAYLOAD];
    head->version = 0x80;
    head->number16 = htons(head->number);
    head->timestamp = htonl((uint32_t)(head->frame * (90000 / HZ)));
    head->sent_ns = now_ns();
    memcpy(bytes, head, sizeof *head);
    /* A full device, or a peer that is gone: lost, as on the way. */
    (void)!send(my->media, bytes, length, MSG_DONTWAIT);
}

static int frame_packets(const struct sender *my, size_t *last)
{
    size_t bytes = (size_t)(my->rate_bit / 8 / HZ);
    int packets = (int)((bytes + PAYLOAD - 1) / PAYLOAD);
    if (packets < 1)
        packets = 1;
    *last = bytes > (size_t)(packets - 1) * PAYLOAD ? bytes - (size_t)(packets - 1) * PAYLOAD : 0;
    if (*last < sizeof(struct packet))
        *last = sizeof(struct packet);
    return packets;
}

static void stream(struct sender *my, int seconds)
{
    const int64_t interval = SECOND_NS / HZ, end_ns = my->began_ns + seconds * SECOND_NS;
    struct packet media = {.type = MEDIA}, echo = {.type = ECHO};
    struct pollfd found[2];
    size_t last;
    int index = 0, packets = frame_packets(my, &last), most_rtts = seconds * 10 + 100;
    int64_t due_ns = my->began_ns, frame_ns = due_ns, echo_ns = due_ns, bin_ns = due_ns;
    while (due_ns < end_ns) {
        int64_t now = now_ns();
        for (; due_ns <= now + TOGETHER_NS && due_ns < end_ns; media.number++) {
            media.index = index;
            media.count = packets;
            bool is_last = ++index == packets;
            if (is_last)
                media.type |= 0x80; /* RTP's marker */
            put(my, &media, is_last ? last : PAYLOAD);
            media.type = MEDIA;
            if (is_last) {
                index = 0;
                media.frame++;
                frame_ns = my->began_ns + media.frame * SECOND_NS / HZ;
                due_ns = frame_ns;
                packets = frame_packets(my, &last);
            } else {
                due_ns = frame_ns + (int64_t)(PACED * interval * index / packets);
            }
        }
        if (now >= echo_ns) {
            echo.number++;
            put(my, &echo, sizeof echo);
            echo_ns += ECHO_NS;
        }
        if (now >= bin_ns) {
            my->target[my->targets++] = my->rate_bit;
            bin_ns += BIN_NS;
        }
        int64_t next_ns = due_ns < echo_ns ? due_ns : echo_ns;
        wait_until(my->media, -1, next_ns, found);
        if (found[0].revents)
            hear(my, most_rtts);
    }
}

static void write_record(struct sender *my, int seconds, const char *competitor,
                         const char *capacity, const char *name)
{
    FILE *file = fopen(name, "w");
    char bytes[65536];
    ssize_t length;
    size_t whole = 0;
    if (file == NULL)
        fail("cannot write %s", name);
    fprintf(file, "{\"version\": 1, \"seconds\": %d, \"hz\": %d, \"competitor\": \"%s\", "
            "\"capacity_mbit\": %g,\n", seconds, HZ, competitor, atof(capacity));
    fprintf(file, "\"target_bit\": [");
    for (int i = 0; i < my->targets; i++)
        fprintf(file, "%s%.0f", i ? ", " : "", my->target[i]);
    fprintf(file, "],\n\"rtt\": [");
    for (int i = 0; i < my->rtts; i++)
        fprintf(file, "%s[%.3f, %.3f]", i ? ", " : "", my->rtt_at[i], my->rtt[i]);
    fprintf(file, "],\n\"received\": ");
    while ((length = read(my->control, bytes, sizeof bytes)) > 0) {
        fwrite(bytes, 1, (size_t)length, file);
        whole += (size_t)length;
    }
    fprintf(file, "}\n");
    if (!whole)
        fail("the receiver left no record");
    if (fclose(file) != 0)
        fail("cannot write %s", name);
}

static int send_stream(char **argv)
{
    const char *server = argv[0], *competitor = argv[7];
    int port = atoi(argv[1]), seconds = atoi(argv[2]);
    struct sender my = {
        .adapts = strcmp(argv[3], "adaptive") == 0,
        .rate_bit = atof(argv[4]) * 1e6,
        .least_bit = atof(argv[5]) * 1e6,
        .most_bit = atof(argv[6]) * 1e6,
        .threshold_ms = 12.5,
    };
    char line[LINE];
    int one = 1;
    if (seconds < 1 || seconds > MOST_SECONDS)
        fail("%d s are not 1 to %d", seconds, MOST_SECONDS);
    my.rtt = calloc((size_t)seconds * 10 + 100, sizeof *my.rtt);
    my.rtt_at = calloc((size_t)seconds * 10 + 100, sizeof *my.rtt_at);
    my.target = calloc((size_t)seconds * 2 + 10, sizeof *my.target);
    my.media = connected(SOCK_DGRAM, server, port);
    my.control = connected(SOCK_STREAM, server, port);
    setsockopt(my.control, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    prctl(PR_SET_TIMERSLACK, 1000);
    dprintf(my.control, "start %d %s\n", seconds, competitor);
    if (!line_of(my.control, line) || strcmp(line, "go") != 0)
        fail("the receiver doesn't begin");
    my.began_ns = now_ns();
    stream(&my, seconds);
    dprintf(my.control, "end\n");
    write_record(&my, seconds, competitor, argv[8], argv[9]);
    printf("%d frames in %d s\n", seconds * HZ, seconds);
    return 0;
}

/* ---- the receiver ---- */

struct frame {
    uint16_t count, received;
    int64_t last_ns;
};

struct bin {
    uint64_t stream_bytes, all_bytes;
    uint32_t received, lost;
};

struct receiver {
    int media, control;
    int64_t began_ns;
    struct frame *frames;
    uint32_t frames_seen;
    struct bin *bins;
    int bin;
    uint64_t stream_bytes, stream_before, device_before;
    uint32_t received_before, highest_before;
    uint32_t received, highest;
    bool has_highest;
    struct sockaddr_in sender;
    bool has_sender;
    /* of reports: totals at the last ten */
    uint64_t bytes_at[REPORTS];
    uint32_t received_at[REPORTS], highest_at[REPORTS];
    int64_t at_ns[REPORTS];
    double delay_sum_ns;
    uint32_t delays;
    int reports;
};

/* Bytes that all devices but the loopback received (proc_net(5)); the TUN device of a relay shows
 * packets without their Ethernet header. */
static uint64_t device_bytes(void)
{
    FILE *file = fopen("/proc/net/dev", "r");
    char line[LINE * 2], name[64];
    unsigned long long bytes, packets, sum = 0;
    if (file == NULL)
        fail("cannot read /proc/net/dev");
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, " %63[^:]: %llu %llu", name, &bytes, &packets) == 3 && strcmp(name, "lo"))
            sum += bytes + (strncmp(name, "forth", 5) == 0 ? packets * 14 : 0);
    fclose(file);
    return sum;
}

static void take(struct receiver *my, const struct packet *got, ssize_t length, int64_t now)
{
    my->stream_bytes += (uint64_t)length + ON_WIRE;
    my->received++;
    if (!my->has_highest || (int32_t)(got->number - my->highest) > 0)
        my->highest = got->number;
    my->has_highest = true;
    my->delay_sum_ns += (double)(now - got->sent_ns);
    my->delays++;
    if (got->frame >= MOST_FRAMES)
        return;
    struct frame *frame = &my->frames[got->frame];
    frame->count = got->count;
    frame->received++;
    frame->last_ns = now;
    if (got->frame >= my->frames_seen)
        my->frames_seen = got->frame + 1;
}

static void listen_to(struct receiver *my)
{
    char bytes[2048];
    struct packet got;
    ssize_t length;
    socklen_t size = sizeof my->sender;
    while ((length = recvfrom(my->media, bytes, sizeof bytes, MSG_DONTWAIT,
                              (struct sockaddr *)&my->sender, &size)) >= 0) {
        if (length < (ssize_t)sizeof got)
            continue;
        memcpy(&got, bytes, sizeof got);
        my->has_sender = true;
        if (got.type == ECHO)
            (void)!sendto(my->media, bytes, (size_t)length, MSG_DONTWAIT,
                          (struct sockaddr *)&my->sender, size);
        else if ((got.type & 0x7f) == MEDIA)
            take(my, &got, length, now_ns());
    }
}

static void report(struct receiver *my, int64_t now)
{
    int slot = my->reports++ % REPORTS, oldest = my->reports % REPORTS;
    struct packet told = {.version = 0x80, .type = REPORT};
    my->bytes_at[slot] = my->stream_bytes;
    my->received_at[slot] = my->received;
    my->highest_at[slot] = my->highest;
    my->at_ns[slot] = now;
    if (my->reports >= REPORTS && my->has_sender && my->delays) {
        double seconds = (double)(now - my->at_ns[oldest]) / 1e9;
        told.number = (uint32_t)my->reports;
        told.delay_ns = (int64_t)(my->delay_sum_ns / my->delays);
        told.rate_bit = (int64_t)((double)(my->stream_bytes - my->bytes_at[oldest]) * 8 / seconds);
        told.expected = my->highest - my->highest_at[oldest];
        told.received = my->received - my->received_at[oldest];
        (void)!sendto(my->media, &told, sizeof told, MSG_DONTWAIT, (struct sockaddr *)&my->sender,
                      sizeof my->sender);
    }
    my->delay_sum_ns = 0;
    my->delays = 0;
}

static pid_t started(char *const argv[])
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv(argv[0], argv);
        fail("cannot run %s", argv[0]);
    }
    return pid;
}

/* Children that have ended are let go only before the next session: until then the kernel keeps
 * what CPU time they had for labctl's snapshot after the window. */
static void let_go(void)
{
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

static void write_received(struct receiver *my, int bins)
{
    FILE *file = fdopen(dup(my->control), "w");
    if (file == NULL)
        fail("cannot write the record");
    fprintf(file, "{\"bin_s\": 0.5, \"bins\": [");
    for (int i = 0; i < bins; i++) {
        struct bin *one = &my->bins[i];
        uint64_t others = one->all_bytes > one->stream_bytes ? one->all_bytes - one->stream_bytes : 0;
        fprintf(file, "%s[%llu, %llu, %u, %u]", i ? ",\n" : "", (unsigned long long)one->stream_bytes,
                (unsigned long long)others, one->received, one->lost);
    }
    fprintf(file, "],\n\"frames\": [");
    for (uint32_t i = 0; i < my->frames_seen; i++) {
        struct frame *one = &my->frames[i];
        if (one->count && one->received >= one->count)
            fprintf(file, "%s%.4f", i ? ", " : "", (double)(one->last_ns - my->began_ns) / 1e9);
        else
            fprintf(file, "%snull", i ? ", " : "");
    }
    fprintf(file, "]}");
    fclose(file);
}

static void close_bin(struct receiver *my)
{
    uint64_t all = device_bytes();
    uint32_t received = my->received - my->received_before;
    uint32_t expected = my->highest - my->highest_before;
    my->bins[my->bin++] = (struct bin){
        .stream_bytes = my->stream_bytes - my->stream_before,
        .all_bytes = all - my->device_before,
        .received = received,
        .lost = expected > received ? expected - received : 0,
    };
    my->stream_before = my->stream_bytes;
    my->device_before = all;
    my->received_before = my->received;
    my->highest_before = my->highest;
}

static void session(struct receiver *my, const char *beside, int beside_port)
{
    char line[LINE], competitor[LINE];
    int seconds, agent = -1;
    pid_t server = 0;
    struct pollfd found[2];
    if (!line_of(my->control, line) || sscanf(line, "start %d %s", &seconds, competitor) != 2 ||
        seconds < 1 || seconds > MOST_SECONDS)
        return;
    bool competes = strcmp(competitor, "none") != 0;
    int bins = seconds * 2;
    my->bins = calloc((size_t)bins, sizeof *my->bins);
    if (competes) {
        server = started((char *[]){"/usr/bin/iperf3", "-s", "-1", "-4", "-p", IPERF_PORT, NULL});
        agent = connected(SOCK_STREAM, beside, beside_port);
        usleep(200000); /* until iperf3 listens */
    }
    listen_to(my); /* what an earlier session left */
    my->received = my->received_before = my->frames_seen = my->delays = 0;
    my->stream_bytes = my->stream_before = 0;
    my->highest = my->highest_before = (uint32_t)-1;
    my->bin = 0;
    my->has_highest = false;
    memset(my->frames, 0, MOST_FRAMES * sizeof *my->frames);
    dprintf(my->control, "go\n");
    my->began_ns = now_ns();
    my->device_before = device_bytes();
    int64_t report_ns = my->began_ns + REPORT_NS, bin_ns = my->began_ns + BIN_NS;
    /* The competitor's begin, then its end, then nothing. */
    int64_t change_ns = my->began_ns + seconds * SECOND_NS / 3;
    bool has_begun = false;
    while (true) {
        int64_t now = now_ns(), next_ns = report_ns < bin_ns ? report_ns : bin_ns;
        if (competes && change_ns < next_ns)
            next_ns = change_ns;
        wait_until(my->media, my->control, next_ns, found);
        if (found[0].revents)
            listen_to(my);
        now = now_ns();
        if (competes && now >= change_ns && !has_begun) {
            dprintf(agent, "%s %d\n", competitor, seconds / 3 + 2);
            change_ns = my->began_ns + 2 * seconds * SECOND_NS / 3;
            has_begun = true;
        } else if (competes && now >= change_ns) {
            /* Its end is a reset: what iperf3 has handed over by then isn't sent any more. */
            kill(server, SIGKILL);
            change_ns = INT64_MAX;
        }
        if (now >= report_ns) {
            report(my, now);
            report_ns += REPORT_NS;
        }
        if (now >= bin_ns) {
            if (my->bin < bins)
                close_bin(my);
            bin_ns += BIN_NS;
        }
        if (found[1].revents)
            break;
    }
    /* A sender's clock may be ahead by a part of the last bin. */
    if (my->bin == bins - 1)
        close_bin(my);
    if (line_of(my->control, line) && strcmp(line, "end") == 0)
        write_received(my, my->bin);
    if (agent >= 0)
        close(agent);
    if (server)
        kill(server, SIGKILL);
    free(my->bins);
}

static int receive(char **argv)
{
    int port = atoi(argv[0]);
    static struct receiver my;
    my.frames = calloc(MOST_FRAMES, sizeof *my.frames);
    my.media = socket_at(SOCK_DGRAM, port);
    int waiting = socket_at(SOCK_STREAM, port);
    prctl(PR_SET_TIMERSLACK, 1000);
    while ((my.control = accept4(waiting, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        let_go();
        session(&my, argv[1], atoi(argv[2]));
        close(my.control);
    }
    fail("cannot accept");
    return 1;
}

/* ---- the competitor ---- */

static int compete(char **argv)
{
    int waiting = socket_at(SOCK_STREAM, atoi(argv[0])), connection;
    char line[LINE], algorithm[LINE], seconds[16];
    int asked;
    while ((connection = accept4(waiting, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        let_go();
        if (line_of(connection, line) && sscanf(line, "%s %d", algorithm, &asked) == 2) {
            snprintf(seconds, sizeof seconds, "%d", asked);
            pid_t client = started((char *[]){"/usr/bin/iperf3", "-c", argv[1], "-4", "-p", IPERF_PORT,
                                              "-C", algorithm, "-t", seconds, "-J", NULL});
            while (line_of(connection, line))
                ;
            kill(client, SIGTERM);
        }
        close(connection);
    }
    fail("cannot accept");
    return 1;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 12 && strcmp(argv[1], "send") == 0)
        return send_stream(argv + 2);
    if (argc == 5 && strcmp(argv[1], "receive") == 0)
        return receive(argv + 2);
    if (argc == 4 && strcmp(argv[1], "compete") == 0)
        return compete(argv + 2);
    errno = 0;
    fail("see the head of game_stream.c for what it takes");
}
