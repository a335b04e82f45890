#pragma once

namespace flashgen {

struct alignas(64) TensorMap { char bytes[128]; };  // an encoded CUtensorMap

}  // namespace flashgen
