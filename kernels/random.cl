// Counter-based random numbers, as in tapeflow/csrc/random.h, which has the conversions: Philox 4x32-10.

// The four words of a counter.
uint4 tpf_philox(ulong counter, ulong key, ulong draw) {
    uint c0 = (uint)counter, c1 = (uint)(counter >> 32), c2 = (uint)draw, c3 = (uint)(draw >> 32);
    uint k0 = (uint)key, k1 = (uint)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint low0 = 0xd2511f53u * c0, high0 = mul_hi(0xd2511f53u, c0);
        uint low1 = 0xcd9e8d57u * c2, high1 = mul_hi(0xcd9e8d57u, c2);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (uint4)(c0, c1, c2, c3);
}

ulong2 tpf_philox_long(ulong counter, ulong key, ulong draw) {
    uint4 w = tpf_philox(counter, key, draw);
    return (ulong2)((ulong)w.s0 | ((ulong)w.s1 << 32), (ulong)w.s2 | ((ulong)w.s3 << 32));
}

// lowest + one of count numbers, wrapping as integers do; a count of 0 is 2^64.
ulong tpf_scaled_32(uint word, ulong count, ulong lowest) { return (((ulong)word * count) >> 32) + lowest; }
ulong tpf_scaled_64(ulong word, ulong count, ulong lowest) {
    return (count != 0ul ? mul_hi(word, count) : word) + lowest;
}

// The key by which a row's position is sorted into a permutation, as a signed number: a word whose low bits are the
// position.
long tpf_permutation_key(ulong word, ulong mask, ulong position) {
    return (long)(((word & ~mask) ^ 0x8000000000000000ul) | position);
}
