#include "net/lock.h"

#include "base/limits.h"
#include "os/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

int lock_take(const char *folder, const char *name, bool wait, int *fd, struct err *e) {
    char path[LIMIT_PATH];
    int rc = file_mkdir_all(folder, 0700, e);
    if (!rc) rc = file_join(path, sizeof path, folder, name, e);
    if (rc) return rc;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*fd < 0) return err_set(e, ERR_IO, "%s: open: %s", path, strerror(errno));
    while (flock(*fd, wait ? LOCK_EX : LOCK_EX | LOCK_NB)) {
        if (errno == EINTR) continue;
        rc = errno == EWOULDBLOCK ? err_set(e, ERR_UNAVAILABLE, "%s: another process uses this folder", folder)
                                  : err_set(e, ERR_IO, "%s: flock: %s", path, strerror(errno));
        close(*fd);
        *fd = -1;
        return rc;
    }
    return ERR_OK;
}

void lock_release(int fd) {
    if (fd >= 0) close(fd); // and with the last descriptor the lock
}
