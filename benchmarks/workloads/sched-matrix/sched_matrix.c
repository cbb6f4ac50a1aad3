/*
 * Run N processes with a fixed amount of work each under one scheduling policy, and print what they
 * took as JSON: the time from letting all of them go to the end of the last, CPU times, context
 * switches.
 *
 *   sched_matrix POLICY TYPE PROCESSES OPS LIMIT_S CPUS [DATA]
 *
 * TYPE: cpu (terms of Leibniz' series for pi), io (copies blocks of DATA, one by one, past the page
 * cache) or mixed (both in turn). DATA is a block device or a file.
 *
 * Each process sets its policy itself, after the fork: a task under SCHED_DEADLINE can't fork
 * (sched(7)), and its bandwidth is admitted one process at a time. What times and, beyond LIMIT_S,
 * ends them runs above them all, so that real-time processes never lock a machine up.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 128, TERMS = 50000, MOST = 1000, WATCHDOG_PRIORITY = 50 };

struct attributes { /* sched_setattr(2); the C library has no wrapper */
    unsigned size, policy;
    unsigned long long flags;
    int nice;
    unsigned priority;
    unsigned long long runtime, deadline, period;
};

static pid_t children[MOST];
static int started;

static void end_all(int unused)
{
    (void)unused;
    for (int i = 0; i < started; i++)
        kill(children[i], SIGKILL);
    static const char said[] = "the processes were ended at the limit\n";
    if (write(2, said, sizeof said - 1)) {}
    _exit(3);
}

static void fail(const char *what)
{
    int error = errno;
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    for (int i = 0; i < started; i++)
        kill(children[i], SIGKILL);
    exit(2);
}

static long number(const char *text, long least, long most, const char *name)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value < least || value > most) {
        fprintf(stderr, "%s is '%s', not a number from %ld to %ld\n", name, text, least, most);
        exit(2);
    }
    return value;
}

static int policy_of(const char *name)
{
    static const char *const names[] = { "other", "fifo", "rr", "batch", 0, "idle", "deadline" };
    for (int i = 0; i < 7; i++)
        if (names[i] && !strcmp(name, names[i]))
            return i;
    fprintf(stderr, "there is no policy '%s'\n", name);
    exit(2);
}

static void set_policy(int policy, long processes, long cpus)
{
    struct attributes wanted = { .size = sizeof wanted, .policy = (unsigned)policy };
    if (policy == SCHED_FIFO || policy == SCHED_RR)
        wanted.priority = 1;
    if (policy == SCHED_DEADLINE) {
        /* The kernel admits 95 % of its CPUs altogether; 100 ms are the period of each. */
        unsigned long long each = 90000000ULL * (unsigned long long)cpus / (unsigned long long)processes;
        wanted.runtime = each < 90000000ULL ? each : 90000000ULL;
        wanted.deadline = wanted.period = 100000000ULL;
    }
    if (syscall(SYS_sched_setattr, 0, &wanted, 0))
        fail("setting the policy");
    if (syscall(SYS_sched_getattr, 0, &wanted, sizeof wanted, 0) || (int)wanted.policy != policy)
        fail("reading the policy back");
}

static double pi(void)
{
    double sum = 0;
    for (int i = 0; i < TERMS; i++)
        sum += (i % 2 ? -1.0 : 1.0) / (2 * i + 1);
    return 4 * sum;
}

static void copy_block(int data, char *block, long process, long turn)
{
    off_t from = (off_t)(process * 2 * BLOCKS + turn % BLOCKS) * BLOCK;
    if (pread(data, block, BLOCK, from) != BLOCK)
        fail("reading a block");
    if (pwrite(data, block, BLOCK, from + (off_t)BLOCKS * BLOCK) != BLOCK)
        fail("writing a block");
}

static void work(const char *type, long ops, long process, const char *path)
{
    static char block[BLOCK] __attribute__((aligned(BLOCK)));
    volatile double kept = 0;
    int data = -1;
    if (strcmp(type, "cpu")) {
        data = open(path, O_RDWR | O_DIRECT);
        if (data < 0)
            fail(path);
    }
    for (long turn = 0; turn < ops; turn++) {
        if (strcmp(type, "io"))
            kept += pi();
        if (data >= 0)
            copy_block(data, block, process, turn);
    }
}

static void check_throttling(int policy)
{
    if (policy != SCHED_FIFO && policy != SCHED_RR)
        return;
    long runtime = -1;
    FILE *file = fopen("/proc/sys/kernel/sched_rt_runtime_us", "r");
    if (!file || fscanf(file, "%ld", &runtime) != 1 || runtime < 0) {
        fprintf(stderr, "real-time processes aren't throttled here (sched_rt_runtime_us is %ld): "
                        "they could lock the machine up\n", runtime);
        exit(2);
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    if (argc != 7 && argc != 8) {
        fprintf(stderr, "sched_matrix POLICY TYPE PROCESSES OPS LIMIT_S CPUS [DATA]\n");
        return 2;
    }
    int policy = policy_of(argv[1]);
    const char *type = argv[2], *path = argc == 8 ? argv[7] : "";
    if (strcmp(type, "cpu") && strcmp(type, "io") && strcmp(type, "mixed")) {
        fprintf(stderr, "there is no type '%s'\n", type);
        return 2;
    }
    long processes = number(argv[3], 1, MOST, "PROCESSES");
    long ops = number(argv[4], 1, 1000000000, "OPS");
    long limit_s = number(argv[5], 1, 86400, "LIMIT_S");
    long cpus = number(argv[6], 1, 4096, "CPUS");
    check_throttling(policy);

    struct sched_param above = { .sched_priority = WATCHDOG_PRIORITY };
    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &above))
        fail("setting the watchdog's priority");

    int ready[2], go[2];
    if (pipe(ready) || pipe(go))
        fail("pipe");
    pid_t self = getpid();
    for (long process = 0; process < processes; process++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            char byte = 0;
            started = 0;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != self)
                _exit(1);
            close(go[1]);
            close(ready[0]);
            set_policy(policy, processes, cpus);
            if (write(ready[1], &byte, 1) != 1)
                _exit(1);
            close(ready[1]);
            if (read(go[0], &byte, 1) != 0) /* until the parent closes its end */
                _exit(1);
            work(type, ops, process, path);
            _exit(0);
        }
        children[started++] = child;
    }
    close(ready[1]);
    close(go[0]);
    signal(SIGALRM, end_all);
    alarm((unsigned)limit_s);
    for (long process = 0; process < processes; process++) {
        char byte;
        if (read(ready[0], &byte, 1) != 1) {
            fprintf(stderr, "a process ended before it was let go\n");
            for (int i = 0; i < started; i++)
                kill(children[i], SIGKILL);
            return 2;
        }
    }
    struct rusage before, after;
    struct timespec begin, end;
    getrusage(RUSAGE_CHILDREN, &before);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    close(go[1]);
    int failed = 0;
    for (long process = 0; process < processes; process++) {
        int status;
        if (wait(&status) < 0)
            fail("wait");
        failed += status != 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    getrusage(RUSAGE_CHILDREN, &after);
    if (failed) {
        fprintf(stderr, "%d of %ld processes failed\n", failed, processes);
        return 1;
    }
    double real = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    double user = (double)after.ru_utime.tv_sec + (double)after.ru_utime.tv_usec / 1e6;
    double system = (double)after.ru_stime.tv_sec + (double)after.ru_stime.tv_usec / 1e6;
    printf("{\"done\": %ld, \"real_s\": %.6f, \"user_s\": %.6f, \"system_s\": %.6f, "
           "\"cpus_busy\": %.4f, \"voluntary\": %ld, \"involuntary\": %ld}\n",
           processes * ops, real, user, system, (user + system) / real, after.ru_nvcsw,
           after.ru_nivcsw);
    return 0;
}
