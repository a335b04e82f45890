#pragma once
// Persistent thread blocks: the thread that takes the next block of keys, tells everyone which it is, and copies its K and V as soon as the one
// before needs them no more: V while that one's last gradients are computed, K while they are stored.
#include <flashgen/fa3/backward/producer.cuh>

namespace flashgen::fa3::backward {

template <class Config>
struct KeyProducer {
  using T = Tiles<Config>;
  static constexpr int kN = Config::kBlockN;

  // The next block that nobody has; < 0: there is none left. Thread blocks begin with their own, but in the order of the keys: there who adds to dQ
  // waits for the blocks before, and one that waits for its multiprocessor, which another launch may have, must hold none.
  __device__ __forceinline__ static int take(BackwardParams const& params) {
    int const tile = atomicAdd(params.next_tile, 1) + (Config::kDeterministic ? 0 : static_cast<int>(gridDim.x));
    return tile < KeyTile<Config>::tiles(params) ? tile : -1;
  }

  // Keys that no row sees are not wanted.
  template <class Tile>
  __device__ __forceinline__ static void copy(BackwardParams const& params, TensorMap const& map, KeyTile<Config> const& tile, uint64_t* full, char* to) {
    if (tile.is_seen(params)) {
      ptx::barrier_arrive_expect(full, Tile::kBytes);
      Producer<Config>::template load<Tile>(map, full, to, ptx::CacheHint::kEvictFirst, tile.n_block * kN, tile.head_kv, tile.batch);
    } else {
      ptx::barrier_arrive(full);
    }
  }

  __device__ __forceinline__ static void run(BackwardParams const& params, Smem<Config>& smem) {
    int tile_index = blockIdx.x, phase = 0;
    if constexpr (Config::kDeterministic) {
      tile_index = take(params);
      ptx::store_shared(smem.keys.next_tile, tile_index);
      ptx::barrier_arrive(&smem.keys.next_full);
    }
    CUTE_NO_UNROLL
    for (;; phase ^= 1) {
      if (tile_index >= 0) {
        KeyTile<Config> const tile(params, tile_index);
        ptx::barrier_wait(&smem.keys.v_empty, phase ^ 1);
        copy<typename T::V>(params, params.v, tile, &smem.keys.v_full, smem.v);
      }
      ptx::barrier_wait(&smem.keys.k_empty, phase ^ 1);
      ptx::store_shared(smem.keys.tile, tile_index);
      if (tile_index < 0) break;
      KeyTile<Config> const tile(params, tile_index);
      copy<typename T::K>(params, params.k, tile, &smem.keys.k_full, smem.k);
      // In the order of the keys who takes a block long before it begins makes those wait that come after it.
      if constexpr (Config::kDeterministic) ptx::barrier_wait(&smem.keys.v_empty, phase);
      tile_index = take(params);
      ptx::barrier_wait(&smem.keys.next_empty, Config::kDeterministic ? phase : phase ^ 1);
      ptx::store_shared(smem.keys.next_tile, tile_index);
      ptx::barrier_arrive(&smem.keys.next_full);
    }
    ptx::barrier_arrive(&smem.keys.k_full);
  }
};

}  // namespace flashgen::fa3::backward
