// Planted fault: a lower folder includes a higher one.
#include "high/b.h"
