/* Loads modules and asks each for the rows of a database. The arguments are the database, then pairs of flags for
   dlopen ("local", "global", "deep") and a module. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
    for (int i = 2; i + 1 < count; i += 2) {
        int flags = RTLD_NOW | (strcmp(arguments[i], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL);
        if (strcmp(arguments[i], "deep") == 0) flags |= RTLD_DEEPBIND;
        void *module = dlopen(arguments[i + 1], flags);
        if (module == NULL) {
            printf("%s\n", dlerror());
            return 1;
        }
        int (*rows_of)(const char *) = (int (*)(const char *))dlsym(module, "rows_of");
        printf("%s %d\n", arguments[i], rows_of(arguments[1]));
    }
    return 0;
}
