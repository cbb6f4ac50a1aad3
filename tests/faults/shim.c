/* Counts the calls by which a process changes files below a folder, and fails at one of them.

   faults_arm(root, at, how, log): the call number `at` (from 1; 0: none) below `root` fails in the
   way `how`. "kill": the process dies before it. "torn": a write writes half of its bytes, any
   other call is made, and then the process dies. A number: the call returns that errno; ENOSPC and
   EROFS stay from then on, as on a disk that is full or read-only. "+1d", "-1d": the clock of the day
   steps by a day, and the call is made. Each call is a line in `log`:
   its name, the size of the file before and after it, and its one or two paths, between tabs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define PATHS 8192

static char root[PATHS];
static size_t root_length;
static long at, count;
static int log_fd = -1, error, torn, failing;
static time_t step, stepped;

void faults_arm(const char *folder, long number, const char *how, int log) {
  snprintf(root, sizeof root, "%s", folder);
  root_length = strlen(root);
  at = number;
  count = 0;
  failing = 0;
  step = !strcmp(how, "+1d") ? 86400 : !strcmp(how, "-1d") ? -86400 : 0;
  error = step ? 0 : atoi(how);
  stepped = 0;
  torn = !strcmp(how, "torn");
  log_fd = log;
}

static int below(const char *path) {
  return root_length && !strncmp(path, root, root_length) &&
         (!path[root_length] || path[root_length] == '/');
}

static void path_of(int fd, char *found) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, found, PATHS - 1);
  found[length > 0 ? length : 0] = 0;
}

static void path_at(int dir, const char *name, char *found) {
  char folder[PATHS] = "";
  if (name[0] == '/') {
    snprintf(found, PATHS, "%s", name);
    return;
  }
  if (dir != AT_FDCWD)
    path_of(dir, folder);
  else if (!getcwd(folder, sizeof folder))
    folder[0] = 0;
  snprintf(found, PATHS, "%.4000s/%.4000s", folder, name);
}

static long size_of(const char *path) {
  struct stat found;
  return lstat(path, &found) ? -1 : S_ISREG(found.st_mode) ? (long)found.st_size : -2;
}

static void say(const char *name, long before, const char *one, const char *two) {
  char line[2 * PATHS + 128];
  if (log_fd < 0)
    return;
  int length = snprintf(line, sizeof line, "%s\t%ld\t%ld\t%s\t%s\n", name, before,
                        size_of(*two ? two : one), one, two);
  syscall(SYS_write, log_fd, line, length);
}

static void die(void) { syscall(SYS_kill, syscall(SYS_getpid), SIGKILL); }

enum kind { SYNC, NAME, SPACE };

/* Returns whether the call fails with errno set. A full disk refuses only what needs space, and a
   read-only one has nothing to sync. */
static int fails(enum kind kind) {
  count++;
  if (!failing && (count != at || torn))
    return 0;
  if (step) {
    stepped = step;
    return 0;
  }
  if (!error)
    die();
  failing = error == ENOSPC || error == EROFS;
  if ((error == ENOSPC && kind != SPACE) || (error == EROFS && kind == SYNC))
    return 0;
  errno = error;
  return 1;
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) \
  real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* Runs `call` as the call `name` on `one` (and `two`), if it is ours to count. */
#define COUNTED(name, kind, one, two, call) \
  do { \
    if (!(below(one) || (*(two) && below(two)))) \
      return call; \
    long before = size_of(one); \
    if (fails(kind)) \
      return -1; \
    __typeof__(call) result = call; \
    int kept = errno; \
    if (result >= 0) \
      say(name, before, one, two); \
    if (count == at && torn) \
      die(); \
    errno = kept; \
    return result; \
  } while (0)

#define WRITES(name, parameters, arguments, halved) \
  ssize_t name parameters { \
    REAL(ssize_t, #name, TYPES_##name); \
    char path[PATHS]; \
    path_of(fd, path); \
    if (below(path) && torn && count + 1 == at && size > 1) { \
      real halved; \
      die(); \
    } \
    COUNTED("write", SPACE, path, "", real arguments); \
  }
#define TYPES_write int, const void *, size_t
#define TYPES_pwrite int, const void *, size_t, off_t
#define TYPES_pwrite64 int, const void *, size_t, off64_t
WRITES(write, (int fd, const void *data, size_t size), (fd, data, size), (fd, data, size / 2))
WRITES(pwrite, (int fd, const void *data, size_t size, off_t where), (fd, data, size, where),
       (fd, data, size / 2, where))
WRITES(pwrite64, (int fd, const void *data, size_t size, off64_t where), (fd, data, size, where),
       (fd, data, size / 2, where))

ssize_t sendfile64(int fd, int from, off64_t *where, size_t size) {
  REAL(ssize_t, "sendfile64", int, int, off64_t *, size_t);
  char path[PATHS];
  path_of(fd, path);
  COUNTED("write", SPACE, path, "", real(fd, from, where, size));
}

#define SYNCS(name) \
  int name(int fd) { \
    REAL(int, #name, int); \
    char path[PATHS]; \
    path_of(fd, path); \
    COUNTED("fsync", SYNC, path, "", real(fd)); \
  }
SYNCS(fsync)
SYNCS(fdatasync)

static int sync_all(void) {
  REAL(void, "sync", void);
  COUNTED("sync", SYNC, root, "", (real(), 0));
}
void sync(void) { sync_all(); }

#define TRUNCATES(name, type) \
  int name(int fd, type size) { \
    REAL(int, #name, int, type); \
    char path[PATHS]; \
    path_of(fd, path); \
    COUNTED("truncate", NAME, path, "", real(fd, size)); \
  }
TRUNCATES(ftruncate, off_t)
TRUNCATES(ftruncate64, off64_t)

int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(int, "clock_gettime", clockid_t, struct timespec *);
  int result = real(clock, now);
  if (clock == CLOCK_REALTIME && !result)
    now->tv_sec += stepped;
  return result;
}

int renameat(int from, const char *old, int to, const char *new) {
  REAL(int, "renameat", int, const char *, int, const char *);
  char one[PATHS], two[PATHS];
  path_at(from, old, one);
  path_at(to, new, two);
  COUNTED("rename", NAME, one, two, real(from, old, to, new));
}
int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

#define ON_PATH(name, word, kind, parameters, types, arguments) \
  int name parameters { \
    REAL(int, #name, types); \
    char path[PATHS]; \
    path_at(AT_FDCWD, file, path); \
    COUNTED(word, kind, path, "", real arguments); \
  }
#define COMMA ,
ON_PATH(unlink, "unlink", NAME, (const char *file), const char *, (file))
ON_PATH(rmdir, "rmdir", NAME, (const char *file), const char *, (file))
ON_PATH(mkdir, "mkdir", SPACE, (const char *file, mode_t mode), const char * COMMA mode_t, (file, mode))

int unlinkat(int dir, const char *file, int flags) {
  REAL(int, "unlinkat", int, const char *, int);
  char path[PATHS];
  path_at(dir, file, path);
  COUNTED(flags & AT_REMOVEDIR ? "rmdir" : "unlink", NAME, path, "", real(dir, file, flags));
}
int mkdirat(int dir, const char *file, mode_t mode) {
  REAL(int, "mkdirat", int, const char *, mode_t);
  char path[PATHS];
  path_at(dir, file, path);
  COUNTED("mkdir", SPACE, path, "", real(dir, file, mode));
}

static int opened(int dir, const char *file, int flags, mode_t mode) {
  REAL(int, "openat64", int, const char *, int, ...);
  char path[PATHS];
  path_at(dir, file, path);
  if (!(flags & (O_CREAT | O_TRUNC)))
    return real(dir, file, flags, mode);
  if (!(flags & O_TRUNC) && !access(path, F_OK))
    return real(dir, file, flags, mode);
  COUNTED("create", SPACE, path, "", real(dir, file, flags, mode));
}
#define MODE(last) \
  va_list rest; \
  va_start(rest, last); \
  mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
  va_end(rest)
#define OPENS(name) \
  int name(const char *file, int flags, ...) { \
    MODE(flags); \
    return opened(AT_FDCWD, file, flags, mode); \
  }
#define OPENS_AT(name) \
  int name(int dir, const char *file, int flags, ...) { \
    MODE(flags); \
    return opened(dir, file, flags, mode); \
  }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
