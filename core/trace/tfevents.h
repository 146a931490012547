/* core/trace/tfevents.h - records of TensorBoard's event files, encoded by hand.
 *
 * A file is a row of records: 8 bytes length, its masked CRC-32C, the message, that one's.  Messages are protocol buffers of type
 * Event; only what a scalar needs is written.  Source: tensorflow/core/util/event.proto, lib/io/record_writer.cc. */
#ifndef CORE_TRACE_TFEVENTS_H
#define CORE_TRACE_TFEVENTS_H

#include <stddef.h>
#include <stdint.h>

#define ST_TF_TAG_MAX      95u
#define ST_TF_RECORD_BYTES 256u

/** CRC-32C (Castagnoli) of some bytes. */
uint32_t st_crc32c(const void *data, size_t bytes);

/** The first record of a file.  Each returns the record's bytes.
 *  @param seconds  since 1970 */
size_t st_tf_version(unsigned char out[ST_TF_RECORD_BYTES], double seconds);
/** A run goes on: what earlier files of the directory say of this step and later ones does not count. */
size_t st_tf_restart(unsigned char out[ST_TF_RECORD_BYTES], double seconds, uint64_t step);
/** A value.  @param tag  at most ST_TF_TAG_MAX bytes */
size_t st_tf_scalar(unsigned char out[ST_TF_RECORD_BYTES], double seconds, uint64_t step, const char *tag, float value);

#endif
