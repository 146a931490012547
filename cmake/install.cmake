# The library as others use it, and what `cmake --install` puts under a prefix: program, library, headers, strata.pc, the CMake
# package (find_package(strata), targets strata::strata and strata::shared), documents, and the configurations and machines they speak of.

# libstrata.a and libstrata.so from the layers' objects, which are compiled once.  Not linked as targets: an installed libstrata.a would
# then drag strata_core & co. along.  The layers stay libraries of their own, so that each test links no more than it tests.
add_library(strata_dependencies INTERFACE)
target_link_libraries(strata_dependencies INTERFACE strata_flags Threads::Threads PkgConfig::HWLOC PkgConfig::URING
  PkgConfig::CJSON PkgConfig::YAML PkgConfig::XXHASH PkgConfig::PCRE2 ${DNNL_LIBRARY} ${GOMP_LIBRARY} ${AIO_LIBRARY} strata_cuda ${CMAKE_DL_LIBS} m)
add_library(strata_lib STATIC)
add_library(strata_shared SHARED)
foreach(library strata_lib strata_shared)
  foreach(layer core kernels nvme offload recipes text model advise run api)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:strata_${layer}>)
  endforeach()
  if(STRATA_HAVE_CUDA)
    target_sources(${library} PRIVATE ${STRATA_KERNELS_CUDA_OBJECTS})
    add_dependencies(${library} strata_kernels_cuda)
  endif()
  target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:strata_dependencies>)
  set_target_properties(${library} PROPERTIES OUTPUT_NAME strata LINKER_LANGUAGE C)
endforeach()
add_library(strata::strata ALIAS strata_lib)
add_library(strata::shared ALIAS strata_shared)
set_target_properties(strata_lib PROPERTIES EXPORT_NAME strata)
set_target_properties(strata_shared PROPERTIES EXPORT_NAME shared
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
if(STRATA_HAVE_CUDA)
  target_link_options(strata_shared PRIVATE LINKER:--exclude-libs,libcudart_static.a) # CUDA's runtime stays its own affair
endif()
if(NOT STRATA_SANITIZE) # clang links the sanitizers' symbols into programs alone
  target_link_options(strata_shared PRIVATE LINKER:--no-undefined)
endif()

# The shared library knows what it needs; who links the static one finds that again.
target_link_libraries(strata_lib PRIVATE $<INSTALL_INTERFACE:strata::dependencies>)
set(STRATA_PC_REQUIRES_PRIVATE "liburing libcjson yaml-0.1 libxxhash libpcre2-8")
# hwloc by name: its own .pc file also asks for what a static hwloc needs (udev), which its packages do not bring.
list(JOIN HWLOC_LDFLAGS " " STRATA_PC_LIBS_PRIVATE)
string(APPEND STRATA_PC_LIBS_PRIVATE " -laio -ldnnl -lgomp -lpthread -lm")
if(STRATA_HAVE_CUDA)
  get_filename_component(cudart_dir ${STRATA_CUDART_LIBRARY} DIRECTORY)
  string(APPEND STRATA_PC_LIBS_PRIVATE " -L${cudart_dir} -lcudart_static -lrt -ldl")
endif()

# What a wheel has beside python/strata (pyproject.toml).
install(TARGETS strata RUNTIME DESTINATION bin COMPONENT python EXCLUDE_FROM_ALL)
install(FILES $<TARGET_FILE:strata_shared> DESTINATION lib RENAME libstrata.so COMPONENT python EXCLUDE_FROM_ALL)

# The headers and the project state one version.
file(STRINGS include/strata/types.h version_line REGEX "STRATA_VERSION_STRING")
if(NOT version_line MATCHES "\"${PROJECT_VERSION}\"")
  message(FATAL_ERROR "include/strata/types.h does not say version ${PROJECT_VERSION}: ${version_line}")
endif()

include(CMakePackageConfigHelpers)
set(STRATA_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/strata)
set(STRATA_GENERATED_DIR ${PROJECT_BINARY_DIR}/package)
configure_package_config_file(cmake/strataConfig.cmake.in ${STRATA_GENERATED_DIR}/strataConfig.cmake
  INSTALL_DESTINATION ${STRATA_PACKAGE_DIR})
write_basic_package_version_file(${STRATA_GENERATED_DIR}/strataConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# From the .pc file to the prefix, so that an installed tree can be moved.
file(RELATIVE_PATH STRATA_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" STRATA_PC_TO_PREFIX "${STRATA_PC_TO_PREFIX}")
file(RELATIVE_PATH STRATA_PC_LIBDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH STRATA_PC_INCLUDEDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/strata.pc.in ${STRATA_GENERATED_DIR}/strata.pc @ONLY)

install(TARGETS strata RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS strata_lib strata_shared EXPORT strata DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(STRATA_HAVE_MPI)
  add_dependencies(strata strata_mpi) # who builds the one to install it needs both
  install(TARGETS strata_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/strata)
endif()
install(DIRECTORY include/strata DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT strata FILE strataTargets.cmake NAMESPACE strata:: DESTINATION ${STRATA_PACKAGE_DIR})
install(FILES ${STRATA_GENERATED_DIR}/strataConfig.cmake ${STRATA_GENERATED_DIR}/strataConfigVersion.cmake
  DESTINATION ${STRATA_PACKAGE_DIR})
install(FILES ${STRATA_GENERATED_DIR}/strata.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY bench/results DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/strata)
install(DIRECTORY share/strata/ DESTINATION ${CMAKE_INSTALL_DATADIR}/strata)
install(DIRECTORY tests/machines DESTINATION ${CMAKE_INSTALL_DATADIR}/strata)
