#include "os/guard.h"

#include "base/log.h"
#include "os/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// What this process tells the guardian, in order. GUARD_ADD carries the socket itself (SCM_RIGHTS).
enum guard_word { GUARD_HELD = 1, GUARD_ADD, GUARD_REMOVE };

struct message {
    int32_t word; // enum guard_word
    int32_t fd;   // its number in this process
};

enum { GUARDIAN_SOCKET = 3, SPARE_FDS = 16 };

// ---- The guardian

struct guardian {
    pthread_mutex_t *alive; // robust, shared: held by a thread of the process that is guarded
    pthread_t watch;        // its other thread, which waits for alive
    bool watches;
    pthread_mutex_t lock; // of fds
    int fds[GUARD_FDS];   // [number there]: the duplicate's number here, 0: none
};

static void *await_death(void *arg) {
    struct guardian *g = arg;
    if (pthread_mutex_lock(g->alive) != EOWNERDEAD) _exit(EXIT_FAILURE);
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < GUARD_FDS; i++)
        if (g->fds[i]) shutdown(g->fds[i], SHUT_RDWR);
    _exit(EXIT_SUCCESS);
}

// False: the other end is closed.
static bool receive(struct message *m, int *fd) {
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof *fd)];
    } u;
    struct iovec io = {.iov_base = m, .iov_len = sizeof *m};
    struct msghdr h = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof u};
    ssize_t n;
    do n = recvmsg(GUARDIAN_SOCKET, &h, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    const struct cmsghdr *c = n == sizeof *m ? CMSG_FIRSTHDR(&h) : NULL;
    *fd = 0;
    if (c && c->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return n == sizeof *m;
}

static void start_watch(struct guardian *g) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN > 64 << 10 ? (size_t)PTHREAD_STACK_MIN : 64 << 10);
    if (pthread_create(&g->watch, &small, await_death, g)) _exit(EXIT_FAILURE);
    g->watches = true;
}

// Nothing of the process that it comes from: a guardian that held its files would keep pipes, locks and ports alive.
static void leave_parent(int socket) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL); // it ends with the other process, not before
    setsid();                             // a signal to the process group is not for it
    prctl(PR_SET_NAME, "loom-guard");
    if (dup2(socket, GUARDIAN_SOCKET) < 0) _exit(EXIT_FAILURE);
    close_range(GUARDIAN_SOCKET + 1, ~0u, 0);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < GUARDIAN_SOCKET; fd++)
        if (null < 0 || dup2(null, fd) < 0) close(fd);
    if (null > GUARDIAN_SOCKET) close(null);
    if (chdir("/")) _exit(EXIT_FAILURE);
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max < GUARD_FDS + SPARE_FDS ? r.rlim_max : GUARD_FDS + SPARE_FDS;
        setrlimit(RLIMIT_NOFILE, &r); // what does not fit is not guarded
    }
    thread_raise_priority();
}

_Noreturn static void guardian_main(int socket, pthread_mutex_t *alive) {
    static struct guardian g = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct message m;
    int fd;
    g.alive = alive;
    leave_parent(socket);
    while (receive(&m, &fd)) {
        if (m.word == GUARD_HELD) start_watch(&g);
        if (m.word == GUARD_HELD || m.fd < 0 || m.fd >= GUARD_FDS) continue;
        pthread_mutex_lock(&g.lock);
        if (g.fds[m.fd]) close(g.fds[m.fd]);
        g.fds[m.fd] = fd; // of GUARD_REMOVE: 0
        pthread_mutex_unlock(&g.lock);
    }
    // The process is gone, or wants no guardian and kills it. Whichever it is, the other thread ends this one too.
    if (g.watches) pthread_join(g.watch, NULL);
    _exit(EXIT_SUCCESS);
}

// ---- The process that is guarded

static struct {
    _Atomic bool runs;
    _Atomic bool stopping;
    int socket;
    pid_t pid;
    pthread_mutex_t *alive; // in a page that both processes have
    struct thread holder;
} guard;

static void tell(enum guard_word word, int fd) {
    struct message m = {.word = word, .fd = fd};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof fd)];
    } u = {0};
    struct iovec io = {.iov_base = &m, .iov_len = sizeof m};
    struct msghdr h = {.msg_iov = &io, .msg_iovlen = 1};
    if (word == GUARD_ADD) {
        h.msg_control = &u;
        h.msg_controllen = sizeof u;
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    if (sendmsg(guard.socket, &h, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        LOG_D("guard", "socket %d: %s", fd, strerror(errno));
}

// Does nothing but hold the mutex, until there is no guardian any more.
static void hold(void *arg) {
    struct pollfd p = {.fd = guard.socket};
    int status = 0;
    (void)arg;
    pthread_mutex_lock(guard.alive);
    tell(GUARD_HELD, -1);
    while (!(p.revents & (POLLHUP | POLLERR)))
        if (poll(&p, 1, -1) < 0) p.revents = 0;
    atomic_store(&guard.runs, false);
    kill(guard.pid, SIGKILL); // of guard_stop: it ends without a look at the mutex
    while (waitpid(guard.pid, &status, 0) < 0 && errno == EINTR) continue;
    pthread_mutex_unlock(guard.alive);
    if (!atomic_load(&guard.stopping))
        LOG_W("guard", "the guardian ended (%s %d): if this process is killed, others notice it later",
              WIFSIGNALED(status) ? "signal" : "exit code",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static int make_mutex(pthread_mutex_t **out, struct err *e) {
    pthread_mutexattr_t a;
    pthread_mutex_t *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return err_set(e, ERR_NOMEM, "guardian: no memory");
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    int rc = pthread_mutex_init(m, &a);
    pthread_mutexattr_destroy(&a);
    if (rc) {
        munmap(m, sizeof *m);
        return err_set(e, ERR_UNSUPPORTED, "guardian: no robust mutex: %s", strerror(rc));
    }
    *out = m;
    return ERR_OK;
}

static void forget_guardian(void) {
    close(guard.socket);
    munmap(guard.alive, sizeof *guard.alive);
    guard.alive = NULL;
}

int guard_start(struct err *e) {
    int pair[2];
    ASSERT(!guard.alive, "guard_start was called before");
    int rc = make_mutex(&guard.alive, e);
    if (rc) return rc;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        munmap(guard.alive, sizeof *guard.alive);
        guard.alive = NULL;
        return err_set(e, ERR_IO, "guardian: no socket: %s", strerror(errno));
    }
    guard.socket = pair[0];
    guard.pid = fork();
    if (guard.pid == 0) guardian_main(pair[1], guard.alive);
    close(pair[1]);
    if (guard.pid < 0) {
        forget_guardian();
        return err_set(e, ERR_IO, "guardian: no process: %s", strerror(errno));
    }
    atomic_store(&guard.stopping, false);
    atomic_store(&guard.runs, true);
    rc = thread_start(&guard.holder, "loom-alive", hold, NULL, e);
    if (!rc) return ERR_OK;
    atomic_store(&guard.runs, false);
    kill(guard.pid, SIGKILL);
    waitpid(guard.pid, NULL, 0);
    forget_guardian();
    return rc;
}

void guard_fd_add(int fd) {
    if (atomic_load(&guard.runs) && fd >= 0 && fd < GUARD_FDS) tell(GUARD_ADD, fd);
}

void guard_fd_remove(int fd) {
    if (atomic_load(&guard.runs) && fd >= 0 && fd < GUARD_FDS) tell(GUARD_REMOVE, fd);
}

void guard_stop(void) {
    if (!guard.alive) return;
    atomic_store(&guard.stopping, true);
    shutdown(guard.socket, SHUT_RDWR);
    thread_join(&guard.holder);
    forget_guardian();
}
