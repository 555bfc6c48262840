// weft's own declarations of the structs and functions of TVM FFI's stable C interface that it calls.
//
// They are resolved with dlsym from the installed library, so a build does not need TVM. This is version 0.1 of the
// interface; `grammar/xgrammar/matcher.cpp` checks the version before it trusts a layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::tvm {

enum TypeIndex : std::int32_t {
  kNone = 0,
  kInt = 1,
  kBool = 2,
  kDLTensorPtr = 7,
  kSmallStr = 11,  // up to 7 bytes, in v_bytes
  kStaticObjectBegin = 64,
  kStr = 65,  // an Object, then a ByteArray
};

// Every heap object begins with this.
struct Object {
  std::uint64_t ref_count;
  std::int32_t type_index;
  std::uint32_t padding;
  void (*deleter)(void *self, int flags);
};

struct Any {
  std::int32_t type_index;
  union {
    std::uint32_t zero_padding;
    std::uint32_t small_len;
  };
  union {
    std::int64_t v_int64;
    void *v_ptr;
    Object *v_obj;
    char v_bytes[8];
  };
};

struct ByteArray {
  const char *data;
  std::size_t size;
};

struct MethodInfo {
  ByteArray name, doc, metadata;
  std::int64_t flags;
  Any method;
};

struct TypeInfo {
  std::int32_t type_index, type_depth;
  ByteArray type_key;
  const TypeInfo **ancestors;
  std::uint64_t type_key_hash;
  std::int32_t num_fields, num_methods;
  const void *fields;
  const MethodInfo *methods;
  const void *metadata;
};

// Follows the Object header of an error.
struct ErrorCell {
  ByteArray kind, message;
};

struct Version {
  std::uint32_t major, minor, patch;
};

// DLPack's tensor, borrowed during one call.
struct DLTensor {
  void *data;
  std::int32_t device_type, device_id;
  std::int32_t ndim;
  std::uint8_t dtype_code, dtype_bits;
  std::uint16_t dtype_lanes;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};
inline constexpr std::int32_t kDLCPU = 1;
inline constexpr std::uint8_t kDLInt = 0;

static_assert(sizeof(Any) == 16 && sizeof(Object) == 24, "TVM FFI 0.1 layout");
static_assert(sizeof(MethodInfo) == 72 && sizeof(TypeInfo) == 72 && sizeof(DLTensor) == 48, "TVM FFI 0.1 layout");

struct Api {
  void (*GetVersion)(Version *out);
  int (*TypeKeyToIndex)(const ByteArray *key, std::int32_t *index);
  const TypeInfo *(*GetTypeInfo)(std::int32_t index);
  int (*FunctionCall)(void *function, Any *args, std::int32_t count, Any *result);
  void (*ErrorMoveFromRaised)(void **error);
  int (*ObjectIncRef)(void *object);
  int (*ObjectDecRef)(void *object);
};

}  // namespace weft::tvm
