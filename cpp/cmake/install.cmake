# The same rules fill a prefix (cmake --install, no Python needed) and the package in a wheel.
include(CMakePackageConfigHelpers)

set(_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvshm)
set(_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(SKBUILD)
  set(_namelink NAMELINK_SKIP)
else()
  set(_namelink "")
endif()
install(TARGETS kvshm EXPORT kvshmTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${_namelink})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")

# Ours, and the notices that go with what is linked into the library. In a wheel they lie where
# Python's packages have them (license-files in pyproject.toml).
if(NOT SKBUILD)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/licenses DESTINATION ${CMAKE_INSTALL_DOCDIR}
    FILES_MATCHING PATTERN "*.txt")
endif()

if(SKBUILD)
  # A wheel holds no symlinks, so -lkvshm finds a linker script. It is written into a folder of its
  # own: beside the library it would be written through CMake's symlink, over the library itself.
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/namelink/libkvshm.so "INPUT(libkvshm.so.0)\n")
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/namelink/libkvshm.so
    DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# Computed, because libdir may have more than one component (lib/x86_64-linux-gnu).
file(RELATIVE_PATH KVSHM_PC_TO_PREFIX
  ${CMAKE_INSTALL_PREFIX}/${_pc_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" KVSHM_PC_TO_PREFIX "${KVSHM_PC_TO_PREFIX}")
configure_file(cmake/kvshm.pc.in kvshm.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvshm.pc DESTINATION ${_pc_dir})

configure_package_config_file(cmake/kvshmConfig.cmake.in kvshmConfig.cmake
  INSTALL_DESTINATION ${_config_dir})
write_basic_package_version_file(kvshmConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/kvshmConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/kvshmConfigVersion.cmake
  DESTINATION ${_config_dir})
install(EXPORT kvshmTargets NAMESPACE kvshm:: DESTINATION ${_config_dir})
