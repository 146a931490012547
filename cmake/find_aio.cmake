# libaio brings no pkg-config file: target strata_aio.
find_path(AIO_INCLUDE_DIR libaio.h)
find_library(AIO_LIBRARY aio)
if(NOT AIO_INCLUDE_DIR OR NOT AIO_LIBRARY)
  message(FATAL_ERROR "libaio was not found: install libaio-dev (Debian, Ubuntu) or libaio-devel (Fedora); tools/install_deps.sh does")
endif()
add_library(strata_aio INTERFACE)
target_include_directories(strata_aio SYSTEM INTERFACE ${AIO_INCLUDE_DIR})
target_link_libraries(strata_aio INTERFACE ${AIO_LIBRARY})
