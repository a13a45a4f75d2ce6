// A cable in user space, for kernels without netem: joins two TAP devices with a delay, a rate, losses, and a plug that
// can be pulled.
//
// usage: tundelay DEVICE NETNS DEVICE2 DELAY_US MBIT
// DEVICE is made in the namespace of the caller, DEVICE2 in the one that the file NETNS stands for. MBIT 0: no bound.
// Then each line on standard input is an order, answered with "ok" or "no":
//
//   cut none|both|out|in    drops what goes both ways, only out of DEVICE2, or only into it
//   pull 0|1                both ends lose their carrier
//   delay US                of one direction, from now on
//   rate MBIT
//   loss PERMILLE
//   counts                  answers with bytes, packets and drops of both directions instead
//
// Ends with its standard input. Frames wait in a ring per direction; one that finds it full is dropped, as a switch
// does. Bytes are counted as they would be on the wire: each segment of a large frame has its own headers, preamble and
// gap.
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    RING = 4096,         // frames on their way in one direction
    FRAME_BYTES = 70000, // the largest that a device gives: 64 KiB to be segmented, and its headers
    HEADERS_BYTES = 66,  // Ethernet, IP and TCP with timestamps: each segment has its own
    SEGMENT_BYTES = 24   // checksum, preamble and gap of each segment
};

struct frame {
    uint8_t *bytes;
    size_t len;
    uint64_t due_ns;
};

struct direction {
    int in, out;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct frame ring[RING];
    size_t head, count;
    atomic_bool cut;
    atomic_ullong bytes, packets, drops;
};

static struct direction towards, from; // DEVICE2
static atomic_ullong delay_ns, rate_mbit;
static atomic_uint loss_permille;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "tundelay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int make_device(const char *name) {
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    if (strlen(name) >= sizeof r.ifr_name) {
        errno = ENAMETOOLONG;
        fail(name);
    }
    strcpy(r.ifr_name, name);
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (fd < 0) fail("/dev/net/tun");
    if (ioctl(fd, TUNSETIFF, &r)) fail(name);
    // Large frames cross in one piece, so that this process is woken once for 64 KiB and not 45 times.
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)) fail("TUNSETOFFLOAD");
    return fd;
}

static uint64_t wire_bytes(const uint8_t *bytes, size_t n) {
    struct virtio_net_hdr h;
    memcpy(&h, bytes, sizeof h);
    uint64_t len = n - sizeof h, segments = 1;
    if (h.gso_type != VIRTIO_NET_HDR_GSO_NONE && h.gso_size && len > h.hdr_len)
        segments = (len - h.hdr_len + h.gso_size - 1) / h.gso_size;
    return len + (segments - 1) * HEADERS_BYTES + segments * SEGMENT_BYTES;
}

// A xorshift of its own: only the reading thread of a direction draws.
static bool is_lost(uint64_t *draw) {
    *draw ^= *draw << 13;
    *draw ^= *draw >> 7;
    *draw ^= *draw << 17;
    return *draw % 1000 < atomic_load(&loss_permille);
}

static bool put(struct direction *d, const uint8_t *bytes, size_t n, uint64_t due_ns) {
    uint8_t *copy = malloc(n);
    if (!copy) return false;
    memcpy(copy, bytes, n);
    pthread_mutex_lock(&d->lock);
    bool room = d->count < RING;
    if (room) {
        d->ring[(d->head + d->count++) % RING] = (struct frame){.bytes = copy, .len = n, .due_ns = due_ns};
        pthread_cond_signal(&d->filled);
    }
    pthread_mutex_unlock(&d->lock);
    if (!room) free(copy);
    return room;
}

static void *take_in(void *arg) {
    struct direction *d = arg;
    uint8_t *bytes = malloc(FRAME_BYTES);
    uint64_t free_ns = 0, draw = 88172645463325252u + (uint64_t)(d == &from);
    if (!bytes) fail("memory");
    for (;;) {
        ssize_t n = read(d->in, bytes, FRAME_BYTES);
        if (n < 0 && (errno == EINTR || errno == EIO)) continue; // EIO: the device is down for now
        if (n < (ssize_t)sizeof(struct virtio_net_hdr)) break;
        uint64_t wire = wire_bytes(bytes, (size_t)n), t = now_ns(), mbit = atomic_load(&rate_mbit);
        if (atomic_load(&d->cut) || is_lost(&draw)) {
            atomic_fetch_add(&d->drops, 1);
            continue;
        }
        if (free_ns < t) free_ns = t;
        if (mbit) free_ns += wire * 8000 / mbit;
        atomic_fetch_add(&d->bytes, wire);
        atomic_fetch_add(&d->packets, 1);
        if (!put(d, bytes, (size_t)n, free_ns + atomic_load(&delay_ns))) atomic_fetch_add(&d->drops, 1);
    }
    fail("read");
    return NULL;
}

static void *give_out(void *arg) {
    struct direction *d = arg;
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
        pthread_mutex_lock(&d->lock);
        while (!d->count) pthread_cond_wait(&d->filled, &d->lock);
        struct frame f = d->ring[d->head];
        d->head = (d->head + 1) % RING;
        d->count--;
        pthread_mutex_unlock(&d->lock);
        struct timespec due = {.tv_sec = (time_t)(f.due_ns / 1000000000u), .tv_nsec = (long)(f.due_ns % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR) {
        }
        // What was on its way when the cable was cut is lost with it.
        ssize_t n = atomic_load(&d->cut) ? 0 : write(d->out, f.bytes, f.len);
        int why = errno;
        free(f.bytes);
        if (n < 0 && why != EINTR && why != EIO && why != ENOBUFS) break;
    }
    fail("write");
    return NULL;
}

static bool set_cut(const char *which) {
    bool both = strcmp(which, "both") == 0, out = strcmp(which, "out") == 0, in = strcmp(which, "in") == 0;
    if (!both && !out && !in && strcmp(which, "none") != 0) return false;
    atomic_store(&from.cut, both || out);
    atomic_store(&towards.cut, both || in);
    return true;
}

static bool set_carrier(int up) {
    return !ioctl(towards.in, TUNSETCARRIER, &up) && !ioctl(from.in, TUNSETCARRIER, &up);
}

static bool obey(const char *order) {
    char word[8], value[24], *end;
    if (sscanf(order, "%7s %23s", word, value) != 2) return false;
    if (!strcmp(word, "cut")) return set_cut(value);
    unsigned long long n = strtoull(value, &end, 10);
    if (*end) return false;
    if (!strcmp(word, "pull")) return set_carrier(n == 0);
    if (!strcmp(word, "delay")) return atomic_store(&delay_ns, n * 1000), true;
    if (!strcmp(word, "rate")) return atomic_store(&rate_mbit, n), true;
    if (!strcmp(word, "loss")) return atomic_store(&loss_permille, (unsigned)n), true;
    return false;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: tundelay DEVICE NETNS DEVICE2 DELAY_US MBIT\n");
        return 2;
    }
    int here = make_device(argv[1]), netns = open(argv[2], O_RDONLY | O_CLOEXEC);
    if (netns < 0 || setns(netns, CLONE_NEWNET)) fail(argv[2]);
    int there = make_device(argv[3]);
    atomic_store(&delay_ns, strtoull(argv[4], NULL, 10) * 1000);
    atomic_store(&rate_mbit, strtoull(argv[5], NULL, 10));
    towards.in = from.out = here;
    towards.out = from.in = there;
    // A cable does not wait for the processor. Where that is not allowed the delay is less exact.
    struct sched_param first = {.sched_priority = 10};
    sched_setscheduler(0, SCHED_FIFO, &first);
    struct direction *both[] = {&towards, &from};
    for (int i = 0; i < 2; i++) {
        pthread_t t;
        if (pthread_mutex_init(&both[i]->lock, NULL) || pthread_cond_init(&both[i]->filled, NULL) ||
            pthread_create(&t, NULL, take_in, both[i]) || pthread_create(&t, NULL, give_out, both[i]))
            fail("threads");
    }
    char order[128];
    printf("ok\n");
    fflush(stdout);
    while (fgets(order, sizeof order, stdin)) {
        if (strncmp(order, "counts", 6) == 0)
            printf("%llu %llu %llu %llu %llu %llu\n", atomic_load(&towards.bytes), atomic_load(&towards.packets),
                   atomic_load(&towards.drops), atomic_load(&from.bytes), atomic_load(&from.packets),
                   atomic_load(&from.drops));
        else
            printf(obey(order) ? "ok\n" : "no\n");
        fflush(stdout);
    }
    return 0;
}
