/* Stands between the store and the kernel (loaded before libc, by store_faults.rs): writes down what is done to the files
 * of one directory, in order, and fails what it is told to. Nothing is really synced: what would have been on the disk
 * at any moment is worked out from the log, by disk.rs.
 *
 * SHADOW_DIR      the directory that is watched
 * SHADOW_CONTROL  a page shared with the test: struct control below
 * SHADOW_LOG      where the log goes
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, READ = 8, NAME = 16 };
enum { RECORD_WRITE = 1, RECORD_TRUNCATE, RECORD_SYNC, RECORD_SYNC_FAILED, RECORD_CREATE, RECORD_RENAME, RECORD_UNLINK, RECORD_MKDIR };
enum { SHORT = 1 }; /* any other kind of fault is an errno */
enum { DROP_LOG = 1, DROP_FILE = 2, DROP_DIRECTORY = 4 };

struct control {
    uint64_t records; /* in the log */
    uint64_t steps;   /* calls of the classes in `mask` so far */
    uint64_t mask;
    uint64_t at;      /* the step that fails first; 0 for none */
    uint64_t count;   /* how many fail from there on */
    uint64_t kind;
    uint64_t drop;    /* syncs that are left out and told to have been done */
    uint64_t failed;  /* faults so far */
};

#define FDS 4096
static char *paths[FDS];
static const char *dir;
static size_t dir_length;
static struct control *control;
static int log_fd = -1;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void start(void) {
    const char *page = getenv("SHADOW_CONTROL"), *log = getenv("SHADOW_LOG");
    dir = getenv("SHADOW_DIR");
    if (!dir || !page || !log) return;
    dir_length = strlen(dir);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, page, O_RDWR | O_CLOEXEC, 0);
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    if (control == MAP_FAILED || log_fd < 0) abort();
}

static int is_ours(const char *path) {
    return log_fd >= 0 && path && !strncmp(path, dir, dir_length);
}

static int ends_with(const char *path, const char *end) {
    size_t a = strlen(path), b = strlen(end);
    return a >= b && !strcmp(path + a - b, end);
}

/* Memory that happens to have a name: nobody expects it to survive. */
static int is_memory(const char *path) {
    return ends_with(path, "-shm");
}

static const char *path_of(int fd) {
    return fd >= 0 && fd < FDS ? paths[fd] : NULL;
}

static void record(uint32_t kind, const char *path, uint64_t offset, const void *data, uint64_t length) {
    uint32_t name = (uint32_t)strlen(path);
    struct { uint32_t kind, name; uint64_t offset, length; } head = {kind, name, offset, length};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, name}, {(void *)data, data ? length : 0}};
    if (!data) head.length = 0;
    if (syscall(SYS_writev, log_fd, parts, 3) < 0) abort();
    control->records++;
}

/* Whether this call is to fail: 0, or the kind of fault. */
static int fault(uint64_t class, const char *path) {
    if (!(control->mask & class) || (is_memory(path) && control->kind != ENOSPC)) return 0;
    uint64_t step = ++control->steps;
    if (!control->at || step < control->at || step - control->at >= control->count) return 0;
    control->failed++;
    return (int)control->kind;
}

static int fail(int error) {
    errno = error;
    return -1;
}

static int open_file(int at, const char *path, int flags, mode_t mode) {
    /* Whoever lists a directory closes it inside libc, unseen. */
    if (!is_ours(path) || (flags & O_DIRECTORY)) return (int)syscall(SYS_openat, at, path, flags, mode);
    pthread_mutex_lock(&turn);
    struct stat there;
    int makes = (flags & O_CREAT) && stat(path, &there) != 0;
    int error = makes ? fault(NAME, path) : 0, fd = -1;
    if (error > SHORT) {
        fail(error);
    } else {
        fd = (int)syscall(SYS_openat, at, path, flags, mode);
        if (fd >= FDS) abort();
        if (fd >= 0) {
            free(paths[fd]);
            paths[fd] = strdup(path);
            if (makes && !is_memory(path)) record(RECORD_CREATE, path, 0, NULL, 0);
            if ((flags & O_TRUNC) && !makes && !is_memory(path)) record(RECORD_TRUNCATE, path, 0, NULL, 0);
        }
    }
    pthread_mutex_unlock(&turn);
    return fd;
}

#define OPEN(name, at, ...)                              \
    int name(__VA_ARGS__, int flags, ...) {              \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode_t mode = (mode_t)va_arg(rest, int);         \
        va_end(rest);                                    \
        return open_file(at, path, flags, mode);         \
    }
OPEN(open, AT_FDCWD, const char *path)
OPEN(open64, AT_FDCWD, const char *path)
OPEN(openat, at, int at, const char *path)
OPEN(openat64, at, int at, const char *path)

int close(int fd) {
    if (path_of(fd)) {
        pthread_mutex_lock(&turn);
        free(paths[fd]);
        paths[fd] = NULL;
        pthread_mutex_unlock(&turn);
    }
    return (int)syscall(SYS_close, fd);
}

/* `offset` below zero is where the descriptor stands. */
static ssize_t write_file(int fd, const void *data, size_t length, off_t offset) {
    const char *path = path_of(fd);
    if (!path) {
        return offset < 0 ? syscall(SYS_write, fd, data, length) : syscall(SYS_pwrite64, fd, data, length, offset);
    }
    pthread_mutex_lock(&turn);
    ssize_t done;
    int error = fault(WRITE, path);
    if (error > SHORT) {
        done = fail(error);
    } else {
        if (error == SHORT && length > 1) length /= 2;
        off_t at = offset < 0 ? syscall(SYS_lseek, fd, 0, SEEK_CUR) : offset;
        done = offset < 0 ? syscall(SYS_write, fd, data, length) : syscall(SYS_pwrite64, fd, data, length, offset);
        if (done > 0 && !is_memory(path)) record(RECORD_WRITE, path, (uint64_t)at, data, (uint64_t)done);
    }
    pthread_mutex_unlock(&turn);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) { return write_file(fd, data, length, -1); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return write_file(fd, data, length, at); }
ssize_t pwrite64(int fd, const void *data, size_t length, off_t at) { return write_file(fd, data, length, at); }

static ssize_t read_file(int fd, void *data, size_t length, off_t offset) {
    const char *path = path_of(fd);
    if (path) {
        pthread_mutex_lock(&turn);
        int error = fault(READ, path);
        pthread_mutex_unlock(&turn);
        if (error > SHORT) return fail(error);
        if (error == SHORT && length > 1) length /= 2;
    }
    return offset < 0 ? syscall(SYS_read, fd, data, length) : syscall(SYS_pread64, fd, data, length, offset);
}

ssize_t read(int fd, void *data, size_t length) { return read_file(fd, data, length, -1); }
ssize_t pread(int fd, void *data, size_t length, off_t at) { return read_file(fd, data, length, at); }
ssize_t pread64(int fd, void *data, size_t length, off_t at) { return read_file(fd, data, length, at); }

static int is_dropped(const char *path) {
    struct stat about;
    if (!control->drop) return 0;
    if (ends_with(path, "-wal")) return control->drop & DROP_LOG;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode)) return control->drop & DROP_DIRECTORY;
    return control->drop & DROP_FILE;
}

static int sync_file(int fd) {
    const char *path = path_of(fd);
    if (!path) return (int)syscall(SYS_fsync, fd);
    if (is_memory(path)) return 0;
    pthread_mutex_lock(&turn);
    int error = fault(SYNC, path), dropped = is_dropped(path);
    if (error > SHORT) {
        record(RECORD_SYNC_FAILED, path, 0, NULL, 0);
    } else if (!dropped) {
        record(RECORD_SYNC, path, 0, NULL, 0);
    }
    pthread_mutex_unlock(&turn);
    return error > SHORT ? fail(error) : 0;
}

int fsync(int fd) { return sync_file(fd); }
int fdatasync(int fd) { return sync_file(fd); }

static int truncate_file(int fd, off_t length) {
    const char *path = path_of(fd);
    if (!path) return (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&turn);
    int error = fault(TRUNCATE, path);
    int done = error > SHORT ? fail(error) : (int)syscall(SYS_ftruncate, fd, length);
    if (done == 0 && !is_memory(path)) record(RECORD_TRUNCATE, path, (uint64_t)length, NULL, 0);
    pthread_mutex_unlock(&turn);
    return done;
}

int ftruncate(int fd, off_t length) { return truncate_file(fd, length); }
int ftruncate64(int fd, off_t length) { return truncate_file(fd, length); }

int rename(const char *from, const char *to) {
    if (!is_ours(from) && !is_ours(to)) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    pthread_mutex_lock(&turn);
    int error = fault(NAME, from);
    int done = error > SHORT ? fail(error) : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (done == 0) record(RECORD_RENAME, from, 0, to, strlen(to));
    pthread_mutex_unlock(&turn);
    return done;
}

int unlink(const char *path) {
    if (!is_ours(path)) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    pthread_mutex_lock(&turn);
    int error = control->kind == ENOSPC ? 0 : fault(NAME, path);
    int done = error > SHORT ? fail(error) : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (done == 0 && !is_memory(path)) record(RECORD_UNLINK, path, 0, NULL, 0);
    pthread_mutex_unlock(&turn);
    return done;
}

int mkdir(const char *path, mode_t mode) {
    if (!is_ours(path)) return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    struct stat there;
    if (stat(path, &there) == 0) return fail(EEXIST);
    pthread_mutex_lock(&turn);
    int error = fault(NAME, path);
    int done = error > SHORT ? fail(error) : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (done == 0) record(RECORD_MKDIR, path, 0, NULL, 0);
    pthread_mutex_unlock(&turn);
    return done;
}

/* Rust's copy falls back to reads and writes, which are seen above. */
ssize_t copy_file_range(int a, off_t *b, int c, off_t *d, size_t e, unsigned f) {
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return fail(ENOSYS);
}
ssize_t sendfile(int a, int b, off_t *c, size_t d) {
    (void)a, (void)b, (void)c, (void)d;
    return fail(ENOSYS);
}
ssize_t sendfile64(int a, int b, off_t *c, size_t d) {
    (void)a, (void)b, (void)c, (void)d;
    return fail(ENOSYS);
}
