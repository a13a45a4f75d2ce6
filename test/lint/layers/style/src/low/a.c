// Planted fault: an include that does not name its folder.
#include "a.h"
