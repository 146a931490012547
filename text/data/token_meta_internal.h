/* text/data/token_meta_internal.h - the numbers of the format, for its reader and its writer.  Private to text/data/. */
#ifndef TEXT_DATA_TOKEN_META_INTERNAL_H
#define TEXT_DATA_TOKEN_META_INTERNAL_H

#define ST_TOKEN_META_MAGIC     "STRATAMD"
#define ST_TOKEN_META_VERSION   1u
#define ST_TOKEN_META_HEADER    96u /* bytes */
#define ST_TOKEN_META_HEADER_AT 44u
#define ST_TOKEN_META_INPUTS_AT 48u
#define ST_TOKEN_META_DIGEST_AT 64u
#define ST_TOKEN_META_TRAILER   32u
#define ST_TOKEN_META_HAS_MASK  1u

#endif
