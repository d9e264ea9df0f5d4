// Metres per cell.
void kernel(uint thread) {
    cell[thread] = cell_m * float(1 << tile[2]);
}
