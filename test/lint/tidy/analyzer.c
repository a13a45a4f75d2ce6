// Planted fault: used after it was freed.
#include <stdlib.h>

int planted(void);
int planted(void) {
    int *p = malloc(sizeof *p);
    if (!p) return 0;
    *p = 1;
    free(p);
    return *p;
}
