# Defines cml::webgpu: the implementation of webgpu.h that the player uses.
if(NOT TARGET cml::webgpu)
  add_library(cml::webgpu INTERFACE IMPORTED GLOBAL)
  if(TARGET webgpu)
    target_link_libraries(cml::webgpu INTERFACE webgpu)
  elseif(CML_DAWN)
    find_package(Dawn REQUIRED)
    target_link_libraries(cml::webgpu INTERFACE dawn::webgpu_dawn)
  else()
    find_path(CML_WGPU_INCLUDE wgpu.h HINTS ${CML_WGPU_DIR}
      ${CML_WGPU_DIR}/include ${CML_WGPU_DIR}/include/webgpu)
    # wgpu_native.dll.lib imports the DLL, wgpu_native.lib is a static library
    find_library(CML_WGPU_LIBRARY NAMES wgpu_native-release wgpu_native.dll wgpu_native
      HINTS ${CML_WGPU_DIR} ${CML_WGPU_DIR}/lib)
    if(NOT CML_WGPU_INCLUDE OR NOT CML_WGPU_LIBRARY)
      message(FATAL_ERROR "The cml player found no wgpu-native: set CML_WGPU_DIR to the folder that "
        "has webgpu.h, wgpu.h and the library. `pip install wgpu` has them in wgpu/resources; for "
        "Windows, unpack a release of https://github.com/gfx-rs/wgpu-native/releases, which has "
        "the import library.")
    endif()
    set(wgpu_library ${CML_WGPU_LIBRARY})
    if(wgpu_library MATCHES "-release\\.dylib$") # macOS looks for the name inside of the library
      set(wgpu_library ${CMAKE_CURRENT_BINARY_DIR}/libwgpu_native.dylib)
      configure_file(${CML_WGPU_LIBRARY} ${wgpu_library} COPYONLY)
    endif()
    target_include_directories(cml::webgpu SYSTEM INTERFACE ${CML_WGPU_INCLUDE})
    target_link_libraries(cml::webgpu INTERFACE ${wgpu_library})
  endif()
endif()
