// Handles, codes, and CUDA where there is none.
#include <string>

#include "driver/error.h"
#include "fixture.h"

using namespace weft::test;

TEST(destroyed_and_foreign_handles_are_refused) {
  int anything = 0;
  const auto bad = [&](auto type) { return reinterpret_cast<decltype(type)>(&anything); };
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  std::size_t count = 0;
  EQUAL(d.cuStreamSynchronize(bad(CUstream{})), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuStreamDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuStreamEndCapture(bad(CUstream{}), &graph), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuEventQuery(bad(CUevent{})), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuEventDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuEventRecord(bad(CUevent{}), nullptr), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuGraphInstantiate(&exec, bad(CUgraph{}), 0), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuGraphLaunch(bad(CUgraphExec{}), nullptr), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuGraphGetNodes(bad(CUgraph{}), nullptr, &count), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuGraphDestroy(bad(CUgraph{})), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuUserObjectRelease(bad(CUuserObject{}), 1), CUDA_ERROR_INVALID_HANDLE);
  CUevent event = new_event();
  OK(d.cuEventDestroy(event));
  EQUAL(d.cuEventSynchronize(event), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuLaunchHostFunc(nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EQUAL(d.cuStreamCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST(every_code_has_a_name) {
  const char *text = nullptr;
  OK(d.cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, &text));
  CHECK(std::string(text) == "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
  OK(d.cuGetErrorString(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, &text));
  CHECK(std::string(text).size() > 10);
  EQUAL(d.cuGetErrorName(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
  int version = 0;
  OK(d.cuInit(0));
  OK(d.cuDriverGetVersion(&version));
  CHECK(version >= 12000);
}

TEST(a_failed_call_is_thrown_with_its_name) {
  weft::check(CUDA_SUCCESS, "cuInit", d);
  std::string what, name;
  int code = 0;
  try {
    weft::check(CUDA_ERROR_CAPTURED_EVENT, "cuEventQuery", d);
  } catch (const weft::DriverError &error) {
    what = error.what();
    name = error.name;
    code = error.code;
  }
  EQUAL(what.rfind("cuEventQuery: CUDA_ERROR_CAPTURED_EVENT (907): ", 0), 0);
  CHECK(name == "CUDA_ERROR_CAPTURED_EVENT");
  EQUAL(code, 907);
}

TEST(without_cuda_there_is_a_reason) {
  const char *why = nullptr;
  if (weft::cuda_driver(&why)) return;  // a machine with a GPU
  CHECK(why && std::string(why).size() > 10);
  const char *again = nullptr;
  CHECK(!weft::cuda_driver(&again) && again == why);
  CHECK(&weft::driver_by_index(0) == &d);
  std::string what;
  try {
    weft::driver_by_index(1);
  } catch (const weft::DriverError &error) {
    what = error.what();
  }
  CHECK(what.find(why) != std::string::npos);
}
