// The kernel of a context: its source through NVRTC to PTX, and that into the driver.
#include <dlfcn.h>
#include <pthread.h>

#include <memory>
#include <mutex>

#include "device/condition.hpp"
#include "device/cuda_context.hpp"
#include "device/cuda_kernel.hpp"
#include "device/kernels/source.hpp"

namespace kvshm::cuda {
namespace {

// NVRTC's functions in use, as its documentation has them. 0 = success.
struct Nvrtc {
  int (*create)(void** program, const char* source, const char* name, int headers,
                const char* const* texts, const char* const* names) = nullptr;
  int (*compile)(void* program, int n, const char* const* options) = nullptr;
  int (*ptx_size)(void* program, std::size_t* out) = nullptr;
  int (*ptx)(void* program, char* out) = nullptr;
  int (*log_size)(void* program, std::size_t* out) = nullptr;
  int (*log)(void* program, char* out) = nullptr;
  int (*destroy)(void** program) = nullptr;
};

bool load(Nvrtc& n, std::string& why) {
  void* lib = nullptr;
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
    if (!lib) lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!lib) return why = "no libnvrtc.so.12 or .13 is found", false;
  const auto find = [&](auto& f, const char* name) {
    f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(lib, name));
    if (!f) why = std::string("libnvrtc has no ") + name;
  };
  find(n.create, "nvrtcCreateProgram");
  find(n.compile, "nvrtcCompileProgram");
  find(n.ptx_size, "nvrtcGetPTXSize");
  find(n.ptx, "nvrtcGetPTX");
  find(n.log_size, "nvrtcGetProgramLogSize");
  find(n.log, "nvrtcGetProgramLog");
  find(n.destroy, "nvrtcDestroyProgram");
  return why.empty();
}

std::string text_by(void* program, int (*size)(void*, std::size_t*), int (*get)(void*, char*)) {
  std::size_t n = 0;
  if (size(program, &n) || !n) return {};
  std::string text(n, '\0');
  return get(program, text.data()) ? std::string() : text;
}

std::string ptx_for(int major, int minor, std::string& why) {
  Nvrtc n;
  if (!load(n, why)) return {};
  void* program = nullptr;
  if (n.create(&program, kRowsSource, "rows.cu", 0, nullptr, nullptr))
    return why = "nvrtcCreateProgram failed", std::string();
  const std::string arch = "--gpu-architecture=compute_" + std::to_string(major * 10 + minor);
  const char* options[] = {arch.c_str()};
  std::string ptx;
  if (n.compile(program, 1, options))
    why = "NVRTC: " + text_by(program, n.log_size, n.log).substr(0, 300);
  else
    ptx = text_by(program, n.ptx_size, n.ptx);
  if (ptx.empty() && why.empty()) why = "NVRTC gave no PTX";
  n.destroy(&program);
  return ptx;
}

// Never gone: a thread of ours may outlive main().
struct Kernels {
  std::mutex mutex;
  Condition ended;
  std::uint32_t making = 0;
  std::vector<std::pair<Context, KernelState>> all;
};
Kernels& kernels() {
  static Kernels* k = new Kernels;
  return *k;
}

KernelState make(const Driver& d, Context context) {
  KernelState out;
  Session s{&d, context, -1};
  Current now(s);
  int device = 0, major = 0, minor = 0, same = 0;
  void* module = nullptr;
  if (now.rc() || d.ctx_get_device(&device) || d.device_attribute(&major, kComputeMajor, device) ||
      d.device_attribute(&minor, kComputeMinor, device) ||
      d.device_attribute(&same, kHostAddresses, device))
    return out.why = "the device does not say what it is", out;
  if (!same) return out.why = "the device has other addresses for the host's memory", out;
  if (major < 7) return out.why = "a device of compute capability 7.0 is wanted", out;
  const std::string ptx = ptx_for(major, minor, out.why);
  if (ptx.empty()) return out;
  Result rc = d.module_load(&module, ptx.c_str());
  if (!rc) rc = d.module_function(&out.function, module, "kvshm_rows");
  if (rc) out.function = nullptr, out.why = "the driver refuses the kernel: " + text_of(d, rc);
  return out;
}

struct Job {
  const Driver* driver;
  Context context;
};

void* run(void* arg) {
  const std::unique_ptr<Job> job(static_cast<Job*>(arg));
  KernelState made;
  try {
    made = make(*job->driver, job->context);
  } catch (const std::bad_alloc&) {
    made.why = "out of memory";
  }
  Kernels& k = kernels();
  std::unique_lock lock(k.mutex);
  for (auto& [context, state] : k.all)
    if (context == job->context) state = made;
  k.making--;
  k.ended.wake();
  return nullptr;
}

}  // namespace

KernelState kernel_of(const Driver& d, Context context) {
  if (!d.launch || !d.module_load || !d.module_function || !d.device_attribute)
    return {nullptr, "the driver launches no kernels"};
  Kernels& k = kernels();
  std::unique_lock lock(k.mutex);
  for (const auto& [known, state] : k.all)
    if (known == context) return state;
  k.all.push_back({context, {}});
  auto job = std::make_unique<Job>(Job{&d, context});
  pthread_t thread;
  if (!start_quiet_thread(&thread, "kvshm-kernel", run, job.get())) {
    k.all.back().second.why = "no thread";
    return k.all.back().second;
  }
  (void)job.release();
  pthread_detach(thread);
  k.making++;
  return {};
}

void wait_kernels() {
  Kernels& k = kernels();
  std::unique_lock lock(k.mutex);
  while (k.making) k.ended.wait(lock, INT64_MAX / 2000000);
}

}  // namespace kvshm::cuda
