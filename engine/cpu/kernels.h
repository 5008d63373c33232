// Everything that a level is made of. level_*.c include this once each, with
// their instruction set switched on.
#if defined(SB_BASE)
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF // a product and a sum fuse only where v_fma says so
#endif

#include "vec.h"

#include "dequant.h"

#include "packed.h"

#include "int8.h"

#include "linear.h"

#if defined(SB_BASE)
// A level that differs from another one in its products of int8 only, and in what is
// packed for them.
const sb_level LEVEL = {
	.name = LEVEL_NAME,
	.base = &SB_BASE,
#if defined(SB_AMX)
	.run = {[SB_PACK] = run_pack, [SB_EMBED] = run_embed, [SB_LINEAR] = run_amx},
#else
	.run = {[SB_PACK] = run_pack, [SB_EMBED] = run_embed, [SB_LINEAR] = run_linear},
#endif
	.pack = pack_size,
	.lanes = W,
};
#else
#include "rows.h"

#include "attention.h"

#include "state.h"

const sb_level LEVEL = {
	.name = LEVEL_NAME,
	.run = {
		[SB_EMBED] = run_embed,
		[SB_NORM] = run_norm,
#if defined(SB_INT8)
		[SB_PACK] = run_pack,
		[SB_QUANT] = run_quant,
#endif
		[SB_LINEAR] = run_linear,
		[SB_ROPETABLE] = run_ropetable,
		[SB_ROPE] = run_rope,
		[SB_KVWRITE] = run_kvwrite,
		[SB_ATTENTION] = run_attention,
		[SB_ATTNMERGE] = run_attnmerge,
		[SB_ROUTE] = run_route,
		[SB_MOESORT] = run_moesort,
		[SB_COMBINE] = run_combine,
		[SB_CONV] = run_conv,
		[SB_DELTA] = run_delta,
		[SB_SSM] = run_ssm,
		[SB_BINARY] = run_binary,
		[SB_UNARY] = run_unary,
		[SB_COPY] = run_copy,
		[SB_ARGMAX] = run_argmax,
		[SB_TOPK] = run_topk,
		[SB_LSE] = run_lse,
		[SB_MAPIDS] = run_mapids,
		[SB_BLOCKCONV] = run_blockconv,
		[SB_PAIRSELECT] = run_pairselect,
	},
	.finish = {
		[SB_ARGMAX] = finish_argmax,
		[SB_TOPK] = finish_topk,
		[SB_LSE] = finish_lse,
	},
#if defined(SB_INT8)
	.pack = pack_size,
#endif
	.lanes = W,
};
#endif
