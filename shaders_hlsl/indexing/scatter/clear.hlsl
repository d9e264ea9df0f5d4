// Resets the number of the last update for each slot.

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    T0[i] = 0;
}
