// Planted fault: not as clang-format would write it.
int  planted( int a ){return a ;}
