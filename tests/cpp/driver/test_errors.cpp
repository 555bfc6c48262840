// Invalid handles, error codes, and selecting CUDA on a machine without it.
#include <string>

#include "driver/error.h"
#include "fixture.h"

using namespace weft::test;

TEST_CASE("destroyed and foreign handles are refused") {
  int anything = 0;
  const auto bad = [&](auto type) { return reinterpret_cast<decltype(type)>(&anything); };
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  std::size_t count = 0;
  CHECK(d.cuStreamSynchronize(bad(CUstream{})) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuStreamDestroy(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuStreamEndCapture(bad(CUstream{}), &graph) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuEventQuery(bad(CUevent{})) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuEventDestroy(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuEventRecord(bad(CUevent{}), nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuGraphInstantiate(&exec, bad(CUgraph{}), 0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuGraphLaunch(bad(CUgraphExec{}), nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuGraphGetNodes(bad(CUgraph{}), nullptr, &count) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuGraphDestroy(bad(CUgraph{})) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuUserObjectRelease(bad(CUuserObject{}), 1) == CUDA_ERROR_INVALID_HANDLE);
  CUevent event = new_event();
  CHECK_OK(d.cuEventDestroy(event));
  CHECK(d.cuEventSynchronize(event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuLaunchHostFunc(nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(d.cuStreamCreate(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("every code has a name") {
  const char *text = nullptr;
  CHECK_OK(d.cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, &text));
  CHECK(std::string(text) == "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
  CHECK_OK(d.cuGetErrorString(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, &text));
  CHECK(std::string(text).size() > 10);
  CHECK(d.cuGetErrorName(static_cast<CUresult>(12345), &text) == CUDA_ERROR_INVALID_VALUE);
  int version = 0;
  CHECK_OK(d.cuInit(0));
  CHECK_OK(d.cuDriverGetVersion(&version));
  CHECK(version >= 12000);
}

TEST_CASE("a failed call is thrown with its name") {
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
  CHECK(what.rfind("cuEventQuery: CUDA_ERROR_CAPTURED_EVENT (907): ", 0) == 0);
  CHECK(name == "CUDA_ERROR_CAPTURED_EVENT");
  CHECK(code == 907);
}

TEST_CASE("without cuda there is a reason") {
  const char *why = nullptr;
  if (weft::cuda_driver(&why)) return;  // a machine with a GPU
  CHECK((why && std::string(why).size() > 10));
  const char *again = nullptr;
  CHECK(!weft::cuda_driver(&again));
  CHECK(again == why);
  CHECK((&weft::driver_by_index(0) == &d));
  std::string what;
  try {
    weft::driver_by_index(1);
  } catch (const weft::DriverError &error) {
    what = error.what();
  }
  CHECK(what.find(why) != std::string::npos);
}
