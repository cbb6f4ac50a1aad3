/* Render frames at a fixed rate and write when each one was due, began and ended.
 *
 *     frame_loop HZ WORK_US SECONDS FILE
 *
 * A frame is WORK_US of CPU time: a sleeping or preempted loop has not rendered. Frames keep their
 * schedule: one that comes too late begins at once and none is skipped, so that a stall is seen in
 * every frame that it delayed. FILE has a line for each frame, in nanoseconds since the first frame
 * was due; it is written at the end, so that no frame waits for it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND INT64_C(1000000000)
#define SLICE 1024

struct frame {
    int64_t scheduled, start, end;
};

static void fail(const char *what)
{
    fprintf(stderr, "frame_loop: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now(clockid_t clock)
{
    struct timespec time;

    if (clock_gettime(clock, &time))
        fail("clock_gettime");
    return time.tv_sec * SECOND + time.tv_nsec;
}

static void sleep_until(int64_t when)
{
    struct timespec time = { when / SECOND, when % SECOND };

    while ((errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL)))
        if (errno != EINTR)
            fail("clock_nanosleep");
}

/* Compute until this thread has used so much CPU time. */
static void render(int64_t work_ns)
{
    static volatile uint64_t picture = 1;
    int64_t until = now(CLOCK_THREAD_CPUTIME_ID) + work_ns;

    while (now(CLOCK_THREAD_CPUTIME_ID) < until)
        for (int i = 0; i < SLICE; i++)
            picture = picture * UINT64_C(6364136223846793005) + 1442695040888963407;
}

static long number(const char *text, const char *what, long most)
{
    char *end;
    long found = strtol(text, &end, 10);

    if (*end || found < 1 || found > most) {
        fprintf(stderr, "frame_loop: %s is '%s', not 1 to %ld\n", what, text, most);
        exit(2);
    }
    return found;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: frame_loop HZ WORK_US SECONDS FILE\n");
        return 2;
    }
    long hz = number(argv[1], "HZ", 1000);
    int64_t work_ns = 1000 * (int64_t)number(argv[2], "WORK_US", 1000000);
    long count = hz * number(argv[3], "SECONDS", 86400);
    struct frame *frames = malloc(count * sizeof(*frames));

    if (!frames)
        fail("malloc");
    memset(frames, 0xff, count * sizeof(*frames)); /* no page fault in a frame */
    int64_t first = now(CLOCK_MONOTONIC) + SECOND / hz;
    for (long i = 0; i < count; i++) {
        struct frame *frame = &frames[i];

        frame->scheduled = first + i * SECOND / hz;
        sleep_until(frame->scheduled);
        frame->start = now(CLOCK_MONOTONIC);
        render(work_ns);
        frame->end = now(CLOCK_MONOTONIC);
    }

    FILE *file = fopen(argv[4], "w");

    if (!file)
        fail(argv[4]);
    fprintf(file, "scheduled_ns,start_ns,end_ns,deadline_ns\n");
    for (long i = 0; i < count; i++)
        fprintf(file, "%ld,%ld,%ld,%ld\n", frames[i].scheduled - first,
            frames[i].start - first, frames[i].end - first,
            (i + 1) * SECOND / hz);
    if (fclose(file))
        fail(argv[4]);
    return 0;
}
