# What the library is linked from. Only files are looked for, never .pc files: a pkg-config of a
# Python environment hides the system's, and io_uring would be left out without a word.
#
# Sets up the target kvshm_deps: static archives where they exist (their symbols stay hidden).

find_package(Threads REQUIRED)
add_library(kvshm_deps INTERFACE)
target_link_libraries(kvshm_deps INTERFACE Threads::Threads ${CMAKE_DL_LIBS})

find_path(KVSHM_SODIUM_INCLUDE sodium.h)
find_library(KVSHM_SODIUM_LIBRARY NAMES libsodium.a sodium)
if(NOT KVSHM_SODIUM_INCLUDE OR NOT KVSHM_SODIUM_LIBRARY)
  message(FATAL_ERROR "libsodium is missing (Debian and Ubuntu: apt-get install libsodium-dev)")
endif()
target_include_directories(kvshm_deps SYSTEM INTERFACE ${KVSHM_SODIUM_INCLUDE})
target_link_libraries(kvshm_deps INTERFACE ${KVSHM_SODIUM_LIBRARY})

find_path(KVSHM_XXHASH_INCLUDE xxhash.h)
if(NOT KVSHM_XXHASH_INCLUDE)
  message(FATAL_ERROR "xxhash.h is missing (Debian and Ubuntu: apt-get install libxxhash-dev)")
endif()
target_include_directories(kvshm_deps SYSTEM INTERFACE ${KVSHM_XXHASH_INCLUDE})

set(KVSHM_HAVE_IO_URING OFF)
if(NOT KVSHM_IO_URING STREQUAL "OFF")
  find_path(KVSHM_URING_INCLUDE liburing.h)
  find_library(KVSHM_URING_LIBRARY NAMES liburing.a uring)
  if(KVSHM_URING_INCLUDE AND KVSHM_URING_LIBRARY)
    set(KVSHM_HAVE_IO_URING ON)
    target_include_directories(kvshm_deps SYSTEM INTERFACE ${KVSHM_URING_INCLUDE})
    target_link_libraries(kvshm_deps INTERFACE ${KVSHM_URING_LIBRARY})
    target_compile_definitions(kvshm_deps INTERFACE KVSHM_HAVE_IO_URING=1)
  elseif(KVSHM_IO_URING STREQUAL "ON")
    message(FATAL_ERROR "KVSHM_IO_URING=ON, but liburing is missing "
                        "(Debian and Ubuntu: apt-get install liburing-dev)")
  else()
    message(WARNING "liburing is missing: this build has no io_uring")
  endif()
endif()

foreach(_library KVSHM_SODIUM_LIBRARY KVSHM_URING_LIBRARY)
  if(${_library} AND NOT ${_library} MATCHES "\\.a$")
    message(WARNING "${${_library}} is shared: libkvshm will need it at run time")
  endif()
endforeach()
message(STATUS "kvshm ${PROJECT_VERSION}: io_uring ${KVSHM_HAVE_IO_URING}")
