# The library as others use it, and what `cmake --install` puts under a prefix: program, library, headers, strata.pc, the CMake
# package (find_package(strata), target strata::strata), documents, and the configurations and machines they speak of.

# One library from the layers' objects.  Not linked as targets: an installed libstrata.a would then drag strata_core & co. along.
# The layers stay libraries of their own, so that each test links no more than it tests.
add_library(strata_lib)
foreach(layer core kernels nvme offload recipes text model advise run api)
  target_sources(strata_lib PRIVATE $<TARGET_OBJECTS:strata_${layer}>)
endforeach()
if(STRATA_HAVE_CUDA)
  target_sources(strata_lib PRIVATE ${STRATA_KERNELS_CUDA_OBJECTS})
  add_dependencies(strata_lib strata_kernels_cuda)
endif()
add_library(strata::strata ALIAS strata_lib)
set_target_properties(strata_lib PROPERTIES OUTPUT_NAME strata EXPORT_NAME strata LINKER_LANGUAGE C
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_include_directories(strata_lib INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
add_library(strata_dependencies INTERFACE)
target_link_libraries(strata_dependencies INTERFACE strata_flags Threads::Threads PkgConfig::HWLOC PkgConfig::URING
  PkgConfig::CJSON PkgConfig::YAML PkgConfig::XXHASH PkgConfig::PCRE2 ${DNNL_LIBRARY} ${GOMP_LIBRARY} ${AIO_LIBRARY} strata_cuda ${CMAKE_DL_LIBS} m)
target_link_libraries(strata_lib PRIVATE $<BUILD_INTERFACE:strata_dependencies>)

# A shared library knows its own; who links the static one finds them again.
set(STRATA_PC_REQUIRES_PRIVATE "")
set(STRATA_PC_LIBS_PRIVATE "")
set(STRATA_STATIC TRUE)
if(BUILD_SHARED_LIBS)
  set(STRATA_STATIC FALSE)
  if(STRATA_HAVE_CUDA)
    target_link_options(strata_lib PRIVATE LINKER:--exclude-libs,libcudart_static.a) # CUDA's runtime stays its own affair
  endif()
  if(NOT STRATA_SANITIZE) # clang links the sanitizers' symbols into programs alone
    target_link_options(strata_lib PRIVATE LINKER:--no-undefined)
  endif()
else()
  target_link_libraries(strata_lib PRIVATE $<INSTALL_INTERFACE:strata::dependencies>)
  set(STRATA_PC_REQUIRES_PRIVATE "liburing libcjson yaml-0.1 libxxhash libpcre2-8")
  # hwloc by name: its own .pc file also asks for what a static hwloc needs (udev), which its packages do not bring.
  list(JOIN HWLOC_LDFLAGS " " STRATA_PC_LIBS_PRIVATE)
  string(APPEND STRATA_PC_LIBS_PRIVATE " -laio -ldnnl -lgomp -lpthread -lm")
  if(STRATA_HAVE_CUDA)
    get_filename_component(cudart_dir ${STRATA_CUDART_LIBRARY} DIRECTORY)
    string(APPEND STRATA_PC_LIBS_PRIVATE " -L${cudart_dir} -lcudart_static -lrt -ldl")
  endif()
endif()

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
install(TARGETS strata_lib EXPORT strata DESTINATION ${CMAKE_INSTALL_LIBDIR})
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
