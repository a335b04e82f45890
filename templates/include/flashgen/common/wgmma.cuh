#pragma once
// The warpgroup product of Hopper: D (64 x N, float32, registers) = A (64 x 16) * B (16 x N) + D, for every N that is a multiple of 8 up to 256.
// CUTLASS keeps these shapes in a header of 56,000 lines that alone takes NVRTC ten seconds or more; this one takes a tenth of a second.
//
// A thread of a warpgroup holds of D, with lane l of warp w: d[4 j + 2 h + e] = row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + e.
#include <cute/tensor_impl.hpp>
#include <cutlass/bfloat16.h>
#include <cutlass/half.h>

namespace flashgen {

enum class Major { kK = 0, kMN = 1 };  // which index of an operand is contiguous in shared memory

// ss: A and B in shared memory. rs: A in registers (a[2 i + h] = rows + 8 h, columns 8 i + 2 (l % 4) + {0, 1}).
// Descriptors come from SmemTile. accumulate == 0 starts from zero. Asynchronous: see wgmma_fence, wgmma_commit, wgmma_wait.
template <class Element, int N>
struct Wgmma;

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory"); }
// Keeps the compiler from moving accesses of an operand's registers across a product that is in flight.
template <int kCount>
__device__ __forceinline__ void wgmma_hold(float (&registers)[kCount]) {
  CUTE_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void wgmma_hold(uint32_t (&registers)[kCount]) {
  CUTE_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// FLASHGEN_Rn names the first n operands of an instruction, FLASHGEN_Dn binds them to d[0..n).
#define FLASHGEN_R4 "%0, %1, %2, %3"
#define FLASHGEN_D4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define FLASHGEN_R8 FLASHGEN_R4 ", %4, %5, %6, %7"
#define FLASHGEN_D8 FLASHGEN_D4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define FLASHGEN_R12 FLASHGEN_R8 ", %8, %9, %10, %11"
#define FLASHGEN_D12 FLASHGEN_D8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define FLASHGEN_R16 FLASHGEN_R12 ", %12, %13, %14, %15"
#define FLASHGEN_D16 FLASHGEN_D12, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define FLASHGEN_R20 FLASHGEN_R16 ", %16, %17, %18, %19"
#define FLASHGEN_D20 FLASHGEN_D16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define FLASHGEN_R24 FLASHGEN_R20 ", %20, %21, %22, %23"
#define FLASHGEN_D24 FLASHGEN_D20, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define FLASHGEN_R28 FLASHGEN_R24 ", %24, %25, %26, %27"
#define FLASHGEN_D28 FLASHGEN_D24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define FLASHGEN_R32 FLASHGEN_R28 ", %28, %29, %30, %31"
#define FLASHGEN_D32 FLASHGEN_D28, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define FLASHGEN_R36 FLASHGEN_R32 ", %32, %33, %34, %35"
#define FLASHGEN_D36 FLASHGEN_D32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define FLASHGEN_R40 FLASHGEN_R36 ", %36, %37, %38, %39"
#define FLASHGEN_D40 FLASHGEN_D36, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define FLASHGEN_R44 FLASHGEN_R40 ", %40, %41, %42, %43"
#define FLASHGEN_D44 FLASHGEN_D40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define FLASHGEN_R48 FLASHGEN_R44 ", %44, %45, %46, %47"
#define FLASHGEN_D48 FLASHGEN_D44, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define FLASHGEN_R52 FLASHGEN_R48 ", %48, %49, %50, %51"
#define FLASHGEN_D52 FLASHGEN_D48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define FLASHGEN_R56 FLASHGEN_R52 ", %52, %53, %54, %55"
#define FLASHGEN_D56 FLASHGEN_D52, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define FLASHGEN_R60 FLASHGEN_R56 ", %56, %57, %58, %59"
#define FLASHGEN_D60 FLASHGEN_D56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define FLASHGEN_R64 FLASHGEN_R60 ", %60, %61, %62, %63"
#define FLASHGEN_D64 FLASHGEN_D60, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define FLASHGEN_R68 FLASHGEN_R64 ", %64, %65, %66, %67"
#define FLASHGEN_D68 FLASHGEN_D64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define FLASHGEN_R72 FLASHGEN_R68 ", %68, %69, %70, %71"
#define FLASHGEN_D72 FLASHGEN_D68, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define FLASHGEN_R76 FLASHGEN_R72 ", %72, %73, %74, %75"
#define FLASHGEN_D76 FLASHGEN_D72, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define FLASHGEN_R80 FLASHGEN_R76 ", %76, %77, %78, %79"
#define FLASHGEN_D80 FLASHGEN_D76, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define FLASHGEN_R84 FLASHGEN_R80 ", %80, %81, %82, %83"
#define FLASHGEN_D84 FLASHGEN_D80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define FLASHGEN_R88 FLASHGEN_R84 ", %84, %85, %86, %87"
#define FLASHGEN_D88 FLASHGEN_D84, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define FLASHGEN_R92 FLASHGEN_R88 ", %88, %89, %90, %91"
#define FLASHGEN_D92 FLASHGEN_D88, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define FLASHGEN_R96 FLASHGEN_R92 ", %92, %93, %94, %95"
#define FLASHGEN_D96 FLASHGEN_D92, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define FLASHGEN_R100 FLASHGEN_R96 ", %96, %97, %98, %99"
#define FLASHGEN_D100 FLASHGEN_D96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define FLASHGEN_R104 FLASHGEN_R100 ", %100, %101, %102, %103"
#define FLASHGEN_D104 FLASHGEN_D100, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define FLASHGEN_R108 FLASHGEN_R104 ", %104, %105, %106, %107"
#define FLASHGEN_D108 FLASHGEN_D104, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define FLASHGEN_R112 FLASHGEN_R108 ", %108, %109, %110, %111"
#define FLASHGEN_D112 FLASHGEN_D108, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define FLASHGEN_R116 FLASHGEN_R112 ", %112, %113, %114, %115"
#define FLASHGEN_D116 FLASHGEN_D112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define FLASHGEN_R120 FLASHGEN_R116 ", %116, %117, %118, %119"
#define FLASHGEN_D120 FLASHGEN_D116, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define FLASHGEN_R124 FLASHGEN_R120 ", %120, %121, %122, %123"
#define FLASHGEN_D124 FLASHGEN_D120, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define FLASHGEN_R128 FLASHGEN_R124 ", %124, %125, %126, %127"
#define FLASHGEN_D128 FLASHGEN_D124, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// N, its count of accumulators n, then the numbers of the operands that follow them: n .. n + 5.
#define FLASHGEN_WGMMA(ELEMENT, TYPE, N, n, n1, n2, n3, n4, n5, n6)                                                                                     \
  template <>                                                                                                                                       \
  struct Wgmma<ELEMENT, N> {                                                                                                                        \
    template <Major kMajorA = Major::kK, Major kMajorB = Major::kK>                                                                                 \
    __device__ __forceinline__ static void ss(float (&d)[n], uint64_t a, uint64_t b, int accumulate) {                                              \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                    \
                   " {" FLASHGEN_R##n "}, %" #n ", %" #n1 ", p, 1, 1, %" #n3 ", %" #n4 ";\n}"                                                        \
                   : FLASHGEN_D##n                                                                                                                  \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)));                              \
    }                                                                                                                                               \
    template <Major kMajorB>                                                                                                                        \
    __device__ __forceinline__ static void rs(float (&d)[n], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int accumulate) {      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                    \
                   " {" FLASHGEN_R##n "}, {%" #n ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", p, 1, 1, %" #n6 ";\n}"                                  \
                   : FLASHGEN_D##n                                                                                                                  \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate), "n"(static_cast<int>(kMajorB)));                                  \
    }                                                                                                                                               \
  };
#define FLASHGEN_WGMMA_16BIT(...)                            \
  FLASHGEN_WGMMA(cutlass::bfloat16_t, "bf16", __VA_ARGS__) \
  FLASHGEN_WGMMA(cutlass::half_t, "f16", __VA_ARGS__)
FLASHGEN_WGMMA_16BIT(8, 4, 5, 6, 7, 8, 9, 10)
FLASHGEN_WGMMA_16BIT(16, 8, 9, 10, 11, 12, 13, 14)
FLASHGEN_WGMMA_16BIT(24, 12, 13, 14, 15, 16, 17, 18)
FLASHGEN_WGMMA_16BIT(32, 16, 17, 18, 19, 20, 21, 22)
FLASHGEN_WGMMA_16BIT(40, 20, 21, 22, 23, 24, 25, 26)
FLASHGEN_WGMMA_16BIT(48, 24, 25, 26, 27, 28, 29, 30)
FLASHGEN_WGMMA_16BIT(56, 28, 29, 30, 31, 32, 33, 34)
FLASHGEN_WGMMA_16BIT(64, 32, 33, 34, 35, 36, 37, 38)
FLASHGEN_WGMMA_16BIT(72, 36, 37, 38, 39, 40, 41, 42)
FLASHGEN_WGMMA_16BIT(80, 40, 41, 42, 43, 44, 45, 46)
FLASHGEN_WGMMA_16BIT(88, 44, 45, 46, 47, 48, 49, 50)
FLASHGEN_WGMMA_16BIT(96, 48, 49, 50, 51, 52, 53, 54)
FLASHGEN_WGMMA_16BIT(104, 52, 53, 54, 55, 56, 57, 58)
FLASHGEN_WGMMA_16BIT(112, 56, 57, 58, 59, 60, 61, 62)
FLASHGEN_WGMMA_16BIT(120, 60, 61, 62, 63, 64, 65, 66)
FLASHGEN_WGMMA_16BIT(128, 64, 65, 66, 67, 68, 69, 70)
FLASHGEN_WGMMA_16BIT(136, 68, 69, 70, 71, 72, 73, 74)
FLASHGEN_WGMMA_16BIT(144, 72, 73, 74, 75, 76, 77, 78)
FLASHGEN_WGMMA_16BIT(152, 76, 77, 78, 79, 80, 81, 82)
FLASHGEN_WGMMA_16BIT(160, 80, 81, 82, 83, 84, 85, 86)
FLASHGEN_WGMMA_16BIT(168, 84, 85, 86, 87, 88, 89, 90)
FLASHGEN_WGMMA_16BIT(176, 88, 89, 90, 91, 92, 93, 94)
FLASHGEN_WGMMA_16BIT(184, 92, 93, 94, 95, 96, 97, 98)
FLASHGEN_WGMMA_16BIT(192, 96, 97, 98, 99, 100, 101, 102)
FLASHGEN_WGMMA_16BIT(200, 100, 101, 102, 103, 104, 105, 106)
FLASHGEN_WGMMA_16BIT(208, 104, 105, 106, 107, 108, 109, 110)
FLASHGEN_WGMMA_16BIT(216, 108, 109, 110, 111, 112, 113, 114)
FLASHGEN_WGMMA_16BIT(224, 112, 113, 114, 115, 116, 117, 118)
FLASHGEN_WGMMA_16BIT(232, 116, 117, 118, 119, 120, 121, 122)
FLASHGEN_WGMMA_16BIT(240, 120, 121, 122, 123, 124, 125, 126)
FLASHGEN_WGMMA_16BIT(248, 124, 125, 126, 127, 128, 129, 130)
FLASHGEN_WGMMA_16BIT(256, 128, 129, 130, 131, 132, 133, 134)

#undef FLASHGEN_WGMMA
#undef FLASHGEN_WGMMA_16BIT

}  // namespace flashgen
