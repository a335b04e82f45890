#pragma once
// 64 rows of dK or dV from a warpgroup's accumulator to global memory: scale, convert, and let the lanes of a quad exchange their pieces so that
// each stores 16 bytes.
#include <flashgen/common/ptx.cuh>
#include <flashgen/common/quad.cuh>

namespace flashgen::fa3::backward {

// to: the first of the 64 rows; rows: how many of them exist.
template <class Element, int kHeadDim>
__device__ __forceinline__ void store_gradient(Element* to, long long row_stride, int rows, float const (&acc)[kHeadDim / 2], float scale, int thread) {
  constexpr int kPieces = kHeadDim / 8;
  int const lane = thread % 4, row = thread / 32 * 16 + thread % 32 / 4;
  CUTE_UNROLL
  for (int h = 0; h < 2; ++h) {
    bool const inside = row + 8 * h < rows;
    Element* const at = to + (row + 8 * h) * row_stride;
    auto pair = [&](int piece) { return ptx::pack<Element>(acc[4 * piece + 2 * h] * scale, acc[4 * piece + 2 * h + 1] * scale); };
    CUTE_UNROLL
    for (int j = 0; j + 3 < kPieces; j += 4) {
      uint32_t word[4] = {pair(j), pair(j + 1), pair(j + 2), pair(j + 3)};
      transpose_quad(word, lane);
      if (inside) *reinterpret_cast<uint4*>(at + 8 * (j + lane)) = make_uint4(word[0], word[1], word[2], word[3]);
    }
    CUTE_UNROLL
    for (int j = kPieces / 4 * 4; j < kPieces; ++j) {
      if (inside) *reinterpret_cast<uint32_t*>(at + 8 * j + 2 * lane) = pair(j);
    }
  }
}

}  // namespace flashgen::fa3::backward
