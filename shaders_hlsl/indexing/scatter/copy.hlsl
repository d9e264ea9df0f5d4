// T1 = T0: the tensor to which listed updates are applied.

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    T1[i] = T0[i];
}
