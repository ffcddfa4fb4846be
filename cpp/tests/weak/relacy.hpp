// SPDX-License-Identifier: Apache-2.0
// Relacy's parts, without its relacy.hpp, whose macros would rewrite everything after it.
#pragma once
#include <relacy/base.hpp>
//
#include <relacy/context.hpp>
#include <relacy/context_base_impl.hpp>
//
#include <relacy/atomic.hpp>
#include <relacy/atomic_fence.hpp>
#include <relacy/backoff.hpp>
#include <relacy/dyn_thread.hpp>
#include <relacy/stdlib/condition_variable.hpp>
#include <relacy/stdlib/event.hpp>
#include <relacy/stdlib/mutex.hpp>
#include <relacy/stdlib/semaphore.hpp>
#include <relacy/test_suite.hpp>
#include <relacy/thread_local.hpp>
#include <relacy/var.hpp>
