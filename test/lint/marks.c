// Planted fault: an unfinished mark. TODO: finish this.
