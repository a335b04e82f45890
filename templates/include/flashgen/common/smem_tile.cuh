#pragma once
// A tile of 16-bit elements in shared memory, in the one arrangement that bulk tensor copies write, wgmma reads and stmatrix fills:
// chunks of kWidth columns, each chunk all rows after another, 16-byte pieces swizzled within a row's bytes (PTX ISA, "Swizzling modes").
// A tile may be wider than the problem (columns past it arrive as zeros and no product reads them): 72 columns are two chunks of 64, three of
// 32 or five of 16. Wide chunks copy faster, narrow ones take less room; products always have the problem's own width.
#include <cute/swizzle_layout.hpp>
#include <cute/tensor_impl.hpp>

namespace flashgen {

// Half of a wgmma descriptor is the same for every address in a tile; the other half moves.
struct Descriptor {
  uint32_t low, high;
  // The descriptor of an address `bytes` further on.
  __device__ __forceinline__ uint64_t at(int bytes) const { return static_cast<uint64_t>(high) << 32 | (low + static_cast<uint32_t>(bytes >> 4)); }
};

template <class Element, int kRows, int kHeadDim, int kChunkColumns>
struct SmemTile {
  static constexpr int kWidth = kChunkColumns;  // columns of a chunk: one box of a bulk copy
  static_assert(sizeof(Element) == 2 && kRows % 8 == 0, "a tile is whole 8-row pieces of 16-bit elements");
  static_assert(kWidth == 16 || kWidth == 32 || kWidth == 64, "rows of a chunk are swizzled over 32, 64 or 128 bytes");
  static constexpr int kChunks = (kHeadDim + kWidth - 1) / kWidth;
  static constexpr int kCols = kChunks * kWidth;
  static constexpr int kRowBytes = kWidth * 2;
  static constexpr int kChunkBytes = kRows * kRowBytes;
  static constexpr int kBytes = kRows * kCols * 2;
  static constexpr int kSwizzleBits = kWidth == 64 ? 3 : kWidth == 32 ? 2 : 1;

  // (row, column) -> element offset.
  using Layout = decltype(cute::composition(
      cute::Swizzle<kSwizzleBits, 3, 3>{},
      cute::Layout<cute::Shape<cute::Int<kRows>, cute::Shape<cute::Int<kWidth>, cute::Int<kChunks>>>,
                   cute::Stride<cute::Int<kWidth>, cute::Stride<cute::_1, cute::Int<kRows * kWidth>>>>{}));

  // As an operand whose K index runs along the columns (Q and K of S = Q K^T).
  __device__ __forceinline__ static Descriptor k_major(void const* tile) { return descriptor(tile, 1); }
  static constexpr int k_major_step(int step) { return step * 16 / kWidth * kChunkBytes + step * 16 % kWidth * 2; }  // bytes to K = 16 step

  // As an operand whose K index runs along the rows (V of O = P V).
  __device__ __forceinline__ static Descriptor mn_major(void const* tile) { return descriptor(tile, kChunkBytes >> 4); }
  static constexpr int mn_major_step(int step) { return step * 16 * kRowBytes; }

 private:
  __device__ __forceinline__ static Descriptor descriptor(void const* tile, uint32_t leading) {
    constexpr uint32_t kLayoutType = kWidth == 64 ? 1 : kWidth == 32 ? 2 : 3;
    uint32_t const address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
    return {(address >> 4) | leading << 16, static_cast<uint32_t>(8 * kRowBytes >> 4) | kLayoutType << 30};
  }
};

}  // namespace flashgen
