// Planted fault: a library that another folder alone may touch.
#include <event2/event.h>
