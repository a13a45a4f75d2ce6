// Planted fault: the counter wraps before it reaches the end.
long planted(const short *x, long n);
long planted(const short *x, long n) {
    long sum = 0;
    for (short i = 0; i < n; i++) sum += x[i];
    return sum;
}
