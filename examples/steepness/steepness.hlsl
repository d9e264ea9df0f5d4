// One thread for each place: how much the four neighbours differ from it, at the border from itself.
float at(uint image, int row, int column) {
    row = clamp(row, 0, int(x_shape(2)) - 1);
    column = clamp(column, 0, int(x_shape(3)) - 1);
    return x[image + uint(row) * x_shape(3) + uint(column)];
}

void kernel(uint thread) {
    uint area = x_shape(2) * x_shape(3), place = thread % area, image = thread - place;
    int row = int(place / x_shape(3)), column = int(place % x_shape(3));
    float here = x[thread];
    y[thread] = abs(at(image, row - 1, column) - here) + abs(at(image, row + 1, column) - here)
        + abs(at(image, row, column - 1) - here) + abs(at(image, row, column + 1) - here);
}
