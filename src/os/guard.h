// The guardian: a tiny process that ends our connections in the moment in which this process is killed.
//
// The kernel frees the memory of a killed process before it closes its sockets, which takes tens of milliseconds for
// each gigabyte; until then its peers believe that it lives. The guardian holds duplicates of the sockets and waits for
// a robust mutex that a thread of this process holds. The kernel marks such a mutex before it frees memory, so the
// guardian wakes within a fraction of a millisecond and shuts the sockets down.
//
//     guard_start          guard_fd_add / guard_fd_remove             killed
//   main ----------> fork ---------------------------------------> shutdown() of all sockets, end
//                      |   guard_stop, or the guardian was killed
//                      +------------------------------------------> end, nothing else happens
//
// As the guardian holds duplicates, closing a socket does not end its connection any more: whoever has called
// guard_fd_add calls shutdown(fd, SHUT_RDWR) before close(fd).
#pragma once
#include "base/err.h"

enum { GUARD_FDS = 4096 }; // sockets with numbers below that are guarded

// Forks the guardian. Called once, before any thread exists and before much memory is used. Without a guardian all else
// works as well, so the caller logs an error and goes on.
int guard_start(struct err *e) MUST_CHECK;
// From now on fd is shut down when this process is killed. Any thread. Never blocks, never fails: a socket that could
// not be handed over is as it would be without a guardian. No-op without one.
void guard_fd_add(int fd);
// Before fd is closed, with or without guard_fd_add before. Any thread, never blocks. No-op without a guardian.
void guard_fd_remove(int fd);
// Ends the guardian, waits until it is gone. Nobody else uses the guard any more. No-op without one.
void guard_stop(void);
