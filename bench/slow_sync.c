/* Makes fsync and fdatasync take longer, as on a slow disk: SLOW_US microseconds (2000) more.
 *
 *     cc -O2 -shared -fPIC -o slow_sync.so bench/slow_sync.c
 *     LD_PRELOAD=./slow_sync.so SLOW_US=8000 bench/writers.py --mode "rollback FULL"
 *
 * Any number of syncs takes the time of one, as on a disk without a cache. With SLOW_MERGED=PATH one is made at a time, in
 * all processes with this file, and it serves all who came before it began, as Linux empties the cache of a disk. Who is
 * killed then holds up all others.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* In the file that all processes have, which is zero at first. */
struct shared {
    int made; /* 1 while somebody makes it, then 2 */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int is_running;
    long begun, done;
};

static struct shared *shared;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_shared(void) {
    int fd = open(getenv("SLOW_MERGED"), O_RDWR | O_CREAT, 0600), none = 0;
    if (fd < 0 || ftruncate(fd, sizeof *shared) != 0)
        abort();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED)
        abort();
    if (__atomic_compare_exchange_n(&shared->made, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        pthread_mutexattr_t mutex;
        pthread_condattr_t cond;
        pthread_mutexattr_init(&mutex);
        pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&shared->mutex, &mutex);
        pthread_condattr_init(&cond);
        pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
        pthread_cond_init(&shared->changed, &cond);
        __atomic_store_n(&shared->made, 2, __ATOMIC_SEQ_CST);
    }
    while (__atomic_load_n(&shared->made, __ATOMIC_SEQ_CST) != 2)
        usleep(100);
}

static void nap(void) {
    const char *text = getenv("SLOW_US");
    long us = text ? atol(text) : 2000;
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static void nap_with_others(void) {
    pthread_once(&opened, open_shared);
    pthread_mutex_lock(&shared->mutex);
    long wanted = shared->begun + 1;
    while (shared->done < wanted) {
        if (shared->is_running) {
            pthread_cond_wait(&shared->changed, &shared->mutex);
            continue;
        }
        long this = ++shared->begun;
        shared->is_running = 1;
        pthread_mutex_unlock(&shared->mutex);
        nap();
        pthread_mutex_lock(&shared->mutex);
        shared->is_running = 0;
        shared->done = this;
        pthread_cond_broadcast(&shared->changed);
    }
    pthread_mutex_unlock(&shared->mutex);
}

static int synced(const char *name, int fd) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int done = sync(fd);
    getenv("SLOW_MERGED") ? nap_with_others() : nap();
    return done;
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }
