#pragma once
// Where a reader or writer of a ring of kStages buffers stands. Readers wait for `phase`, writers for the opposite one, which makes the
// first kStages writes free.

namespace flashgen {

template <int kStages>
struct PipelineState {
  int stage = 0;
  int phase = 0;

  __device__ __forceinline__ void advance() {
    if constexpr (kStages == 1) {
      phase ^= 1;
    } else {
      ++stage;
      if (stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
  }
};

}  // namespace flashgen
