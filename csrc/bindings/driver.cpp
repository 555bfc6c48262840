// Both drivers for Python: mostly one function per call of the table. `driver` is 0 for the CPU driver and 1 for
// CUDA's. Handles are addresses. A function releases the GIL for its calls, and raises weft.errors.DriverError if one
// fails.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <utility>

#include "bindings/bind.h"
#include "driver/context.h"
#include "driver/cpu/cpu.h"
#include "driver/error.h"
#include "driver/polling/polled.h"
#include "hostfunc/gil.h"

namespace nb = nanobind;

namespace weft {

using namespace cu;

namespace {

using Handle = std::uintptr_t;

struct From {  // converts a handle (an address) to the argument type of the call
  Handle value;
  template <class T>
  operator T *() const {
    return reinterpret_cast<T *>(value);
  }
};

template <class T>
Handle to_handle(T *object) {
  return reinterpret_cast<Handle>(object);
}

struct Answer {
  const Driver &driver;
  CUresult result;
};

template <class Call>
Answer ask(int driver, Call call) {
  GilRelease release;
  const Driver &table = driver_by_index(driver);
  const CUresult attached = ensure_context(table);
  return {table, attached == CUDA_SUCCESS ? call(table) : attached};
}

template <class Call>
void must(int driver, const char *name, Call call) {
  const Answer answer = ask(driver, call);
  check(answer.result, name, answer.driver);
}

// Makes a query call. Returns true if it succeeds, false for CUDA_ERROR_NOT_READY.
template <class Call>
bool is_ready(int driver, const char *name, Call call) {
  const Answer answer = ask(driver, call);
  if (answer.result == CUDA_ERROR_NOT_READY) return false;
  check(answer.result, name, answer.driver);
  return true;
}

const char *type_name(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "kernel";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "memcpy";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "memset";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "host";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "graph";
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return "empty";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "wait_event";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "event_record";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "batch_mem_op";
  }
  return "other";
}

void bind_streams(nb::module_ &m) {
  m.def(
      "stream_create",
      [](int driver, unsigned flags, int priority) {
        CUstream stream = nullptr;
        must(driver, "cuStreamCreateWithPriority",
             [&](const Driver &d) { return d.cuStreamCreateWithPriority(&stream, flags, priority); });
        return to_handle(stream);
      },
      nb::arg("driver"), nb::arg("flags") = CU_STREAM_NON_BLOCKING, nb::arg("priority") = 0);
  m.def("stream_destroy", [](int driver, Handle stream) {
    must(driver, "cuStreamDestroy", [&](const Driver &d) { return d.cuStreamDestroy(From{stream}); });
  });
  m.def("stream_synchronize", [](int driver, Handle stream) {
    must(driver, "cuStreamSynchronize", [&](const Driver &d) { return d.cuStreamSynchronize(From{stream}); });
  });
  m.def("stream_query", [](int driver, Handle stream) {
    return is_ready(driver, "cuStreamQuery", [&](const Driver &d) { return d.cuStreamQuery(From{stream}); });
  });
  m.def("stream_wait_event", [](int driver, Handle stream, Handle event) {
    must(driver, "cuStreamWaitEvent",
         [&](const Driver &d) { return d.cuStreamWaitEvent(From{stream}, From{event}, 0); });
  });
  m.def("ctx_synchronize",
        [](int driver) { must(driver, "cuCtxSynchronize", [](const Driver &d) { return d.cuCtxSynchronize(); }); });
  m.def("memcpy_async", [](int driver, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, Handle stream) {
    must(driver, "cuMemcpyAsync", [&](const Driver &d) { return d.cuMemcpyAsync(dst, src, bytes, From{stream}); });
  });
}

void bind_capture(nb::module_ &m) {
  m.def(
      "stream_begin_capture",
      [](int driver, Handle stream, int mode) {
        must(driver, "cuStreamBeginCapture", [&](const Driver &d) {
          return d.cuStreamBeginCapture(From{stream}, static_cast<CUstreamCaptureMode>(mode));
        });
      },
      nb::arg("driver"), nb::arg("stream"), nb::arg("mode") = static_cast<int>(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  m.def("stream_end_capture", [](int driver, Handle stream) {
    CUgraph graph = nullptr;
    must(driver, "cuStreamEndCapture", [&](const Driver &d) { return d.cuStreamEndCapture(From{stream}, &graph); });
    return to_handle(graph);
  });
  m.def("stream_is_capturing", [](int driver, Handle stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    must(driver, "cuStreamIsCapturing", [&](const Driver &d) { return d.cuStreamIsCapturing(From{stream}, &status); });
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  });
  m.def("stream_capture_info", [](int driver, Handle stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = nullptr;
    must(driver, "cuStreamGetCaptureInfo", [&](const Driver &d) {
      return d.cuStreamGetCaptureInfo(From{stream}, &status, &id, &graph, nullptr, nullptr, nullptr);
    });
    return std::make_tuple(static_cast<int>(status), id, to_handle(graph));
  });
}

void bind_events(nb::module_ &m) {
  m.def(
      "event_create",
      [](int driver, unsigned flags) {
        CUevent event = nullptr;
        must(driver, "cuEventCreate", [&](const Driver &d) { return d.cuEventCreate(&event, flags); });
        return to_handle(event);
      },
      nb::arg("driver"), nb::arg("flags") = CU_EVENT_DISABLE_TIMING);
  m.def("event_destroy", [](int driver, Handle event) {
    must(driver, "cuEventDestroy", [&](const Driver &d) { return d.cuEventDestroy(From{event}); });
  });
  m.def("event_record", [](int driver, Handle event, Handle stream) {
    must(driver, "cuEventRecord", [&](const Driver &d) { return d.cuEventRecord(From{event}, From{stream}); });
  });
  m.def("event_query", [](int driver, Handle event) {
    return is_ready(driver, "cuEventQuery", [&](const Driver &d) { return d.cuEventQuery(From{event}); });
  });
  m.def("event_synchronize", [](int driver, Handle event) {
    must(driver, "cuEventSynchronize", [&](const Driver &d) { return d.cuEventSynchronize(From{event}); });
  });
  m.def("event_elapsed_time", [](int driver, Handle start, Handle end) {
    float milliseconds = 0;
    must(driver, "cuEventElapsedTime",
         [&](const Driver &d) { return d.cuEventElapsedTime(&milliseconds, From{start}, From{end}); });
    return milliseconds;
  });
}

CUresult launch_graph(const Driver &d, Handle exec, Handle stream, std::int64_t polled) {
  if (polled) expect_polled(d, polled);
  const CUresult result = d.cuGraphLaunch(From{exec}, From{stream});
  if (polled && result) expect_polled(d, -polled);
  return result;
}

void bind_graphs(nb::module_ &m) {
  m.def("graph_instantiate", [](int driver, Handle graph) {
    CUgraphExec exec = nullptr;
    must(driver, "cuGraphInstantiate", [&](const Driver &d) { return d.cuGraphInstantiate(&exec, From{graph}, 0); });
    return to_handle(exec);
  });
  // `polled` is the number of polled tasks in the graph (`polled_tasks`).
  m.def(
      "graph_launch",
      [](int driver, Handle exec, Handle stream, std::int64_t polled) {
        must(driver, "cuGraphLaunch", [&](const Driver &d) { return launch_graph(d, exec, stream, polled); });
      },
      nb::arg("driver"), nb::arg("exec"), nb::arg("stream"), nb::arg("polled") = 0);
  // Launches a graph, copies bytes after it, and records an event after the copy, in one call.
  m.def("graph_launch_and_copy", [](int driver, Handle exec, Handle stream, std::int64_t polled, CUdeviceptr dst,
                                    CUdeviceptr src, std::size_t bytes, Handle event) {
    must(driver, "cuGraphLaunch", [&](const Driver &d) {
      if (CUresult r = launch_graph(d, exec, stream, polled)) return r;
      if (CUresult r = d.cuMemcpyAsync(dst, src, bytes, From{stream})) return r;
      return d.cuEventRecord(From{event}, From{stream});
    });
  });
  m.def("graph_destroy", [](int driver, Handle graph) {
    must(driver, "cuGraphDestroy", [&](const Driver &d) { return d.cuGraphDestroy(From{graph}); });
  });
  m.def("graph_exec_destroy", [](int driver, Handle exec) {
    must(driver, "cuGraphExecDestroy", [&](const Driver &d) { return d.cuGraphExecDestroy(From{exec}); });
  });
  m.def("graph_nodes", [](int driver, Handle graph) {
    std::vector<std::tuple<Handle, std::string, std::string>> out;
    must(driver, "cuGraphGetNodes", [&](const Driver &d) {
      std::size_t count = 0;
      if (CUresult r = d.cuGraphGetNodes(From{graph}, nullptr, &count)) return r;
      std::vector<CUgraphNode> nodes(count);
      if (CUresult r = d.cuGraphGetNodes(From{graph}, nodes.data(), &count)) return r;
      for (CUgraphNode node : nodes) {
        CUgraphNodeType type;
        if (CUresult r = d.cuGraphNodeGetType(node, &type)) return r;
        out.emplace_back(to_handle(node), type_name(type), driver == 0 ? cpu::node_label(node) : "");
      }
      return CUDA_SUCCESS;
    });
    return out;
  });
  m.def("graph_edges", [](int driver, Handle graph) {
    std::vector<std::pair<Handle, Handle>> out;
    must(driver, "cuGraphGetEdges", [&](const Driver &d) {
      std::size_t count = 0;
      if (CUresult r = d.cuGraphGetEdges(From{graph}, nullptr, nullptr, &count)) return r;
      std::vector<CUgraphNode> from(count), to(count);
      if (CUresult r = d.cuGraphGetEdges(From{graph}, from.data(), to.data(), &count)) return r;
      for (std::size_t i = 0; i < count; ++i) out.emplace_back(to_handle(from[i]), to_handle(to[i]));
      return CUDA_SUCCESS;
    });
    return out;
  });
}

cpu::Schedule schedule_by_name(const std::string &name) {
  if (name == "inline") return cpu::Schedule::kInline;
  if (name == "threads") return cpu::Schedule::kThreads;
  if (name == "random") return cpu::Schedule::kRandom;
  if (name == "ahead") return cpu::Schedule::kAhead;
  throw nb::value_error(
      ("a schedule is \"inline\", \"threads\", \"random\" or \"ahead\", not \"" + name + "\"").c_str());
}

void set_schedule(const std::string &name, std::uint64_t seed) {
  const cpu::Schedule schedule = schedule_by_name(name);
  const Answer answer = ask(0, [&](const Driver &) { return cpu::set_schedule(schedule, seed); });
  if (answer.result == CUDA_ERROR_ILLEGAL_STATE)
    throw DriverError("the schedule can't change while work is queued or a stream is captured; synchronize first",
                      "CUDA_ERROR_ILLEGAL_STATE", answer.result);
  check(answer.result, "set_schedule", answer.driver);
}

using Slice = std::tuple<std::string, std::string, std::uint64_t, std::uint64_t, double, double>;

std::vector<Slice> trace_stop() {
  std::vector<cpu::TraceSlice> slices;
  {
    GilRelease release;
    slices = cpu::trace_stop();
  }
  std::vector<Slice> out;
  for (cpu::TraceSlice &slice : slices)
    out.emplace_back(std::move(slice.label), type_name(slice.kind), slice.stream, slice.thread,
                     static_cast<double>(slice.begin_ns) * 1e-9, static_cast<double>(slice.end_ns) * 1e-9);
  return out;
}

std::optional<std::string> cuda_unavailable_reason() {
  GilRelease release;
  const char *why = nullptr;
  if (cuda_driver(&why)) return std::nullopt;
  return why;
}

void bind_cpu(nb::module_ &m) {
  m.def("cpu_set_schedule", &set_schedule, nb::arg("name"), nb::arg("seed") = 0);
  m.def("cpu_trace_start", [] {
    GilRelease release;
    cpu::trace_start();
  });
  // Returns [(label, node type, stream number, thread number, begin, end)], with times in seconds of the same clock.
  m.def("cpu_trace_stop", &trace_stop);
  m.def("label_next", [](const std::string &label) {
    GilRelease release;
    cpu::label_next(label.c_str());
  });
}

void translate(const std::exception_ptr &thrown, void *) {
  try {
    std::rethrow_exception(thrown);
  } catch (const DriverError &error) {
    const nb::object type = nb::module_::import_("weft.errors").attr("DriverError");
    PyErr_SetObject(type.ptr(), type(error.what(), error.name, error.code).ptr());
  }
}

}  // namespace

void bind_driver(nb::module_ &m) {
  nb::register_exception_translator(translate);
  bind_streams(m);
  bind_capture(m);
  bind_events(m);
  bind_graphs(m);
  bind_cpu(m);
  m.def("cuda_unavailable_reason", &cuda_unavailable_reason);  // None if CUDA can be used
  m.def("use_device", &use_device, nb::arg("ordinal"));        // for threads without a context
  m.def("driver_version", [](int driver) {
    GilRelease release;
    const Driver &table = driver_by_index(driver);  // no `ensure_context`: this call must not make a context
    int version = 0;
    check(table.cuDriverGetVersion(&version), "cuDriverGetVersion", table);
    return version;
  });
}

}  // namespace weft
