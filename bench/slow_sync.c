/* Makes fsync and fdatasync take longer, as on a slow disk: they sleep for SLOW_US microseconds (2000) first.
 *
 *     cc -O2 -shared -fPIC -o slow_sync.so bench/slow_sync.c
 *     LD_PRELOAD=./slow_sync.so SLOW_US=8000 bench/writers.py --mode "rollback FULL"
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int after_a_nap(const char *name, int fd) {
    const char *text = getenv("SLOW_US");
    long us = text ? atol(text) : 2000;
    struct timespec nap = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&nap, NULL);
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return sync(fd);
}

int fsync(int fd) { return after_a_nap("fsync", fd); }
int fdatasync(int fd) { return after_a_nap("fdatasync", fd); }
