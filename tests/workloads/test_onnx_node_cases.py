"""All of ONNX's own tests of single operators: which load with the shapes that their results have,
and which cannot, and why."""

from collections import defaultdict

import onnx
import pytest
from tests.support.onnx_node_cases import node_cases

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.frontend import LoadOptions
from loadmaster.workloads.frontends.onnx.file import inline_functions
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of, walk_network
from loadmaster.workloads.graph import OpClass

REASONS = {
    "of type sequence": "sequences are no tensors",
    "of type optional": "optional values are no tensors",
    "is 0: give": "the network's data is empty",
    "is empty": "a result is empty",
    "is unknown": "a shape depends on values that the caller gives",
}

CANNOT = {
    "sequences are no tensors": (
        """
        identity_sequence if_seq loop13_seq optional_get_element_sequence
        sequence_insert_at_back sequence_insert_at_front
        split_to_sequence_1 split_to_sequence_2 split_to_sequence_nokeepdims
        sequence_map_identity_1_sequence sequence_map_identity_1_sequence_expanded
        sequence_map_identity_2_sequences sequence_map_identity_2_sequences_expanded
        sequence_map_identity_1_sequence_1_tensor sequence_map_identity_1_sequence_1_tensor_expanded
        sequence_map_add_2_sequences sequence_map_add_2_sequences_expanded
        sequence_map_add_1_sequence_1_tensor sequence_map_add_1_sequence_1_tensor_expanded
        sequence_map_extract_shapes sequence_map_extract_shapes_expanded
    """
    ),
    "optional values are no tensors": (
        """
        identity_opt if_opt loop16_seq_none optional_get_element_optional_tensor
        optional_get_element_optional_sequence
        optional_has_element_tensor_input optional_has_element_optional_input
        optional_has_element_empty_optional_input
    """
    ),
    "the network's data is empty": (
        """
        reduce_log_sum_empty_set reduce_log_sum_empty_set_expanded
        reduce_log_sum_exp_empty_set reduce_log_sum_exp_empty_set_expanded
        reduce_l1_empty_set reduce_l1_empty_set_expanded reduce_l2_empty_set
        reduce_l2_empty_set_expanded
        reduce_max_empty_set reduce_max_empty_set_bool reduce_min_empty_set reduce_prod_empty_set
        reduce_sum_empty_set reduce_sum_empty_set_non_reduced_axis_zero
        reduce_sum_square_empty_set reduce_sum_square_empty_set_expanded
        regex_full_match_empty reshape_allowzero_reordered split_zero_size_splits_opset13
        split_zero_size_splits_opset18
        string_split_empty_tensor triu_zero tril_zero
    """
    ),
    "a result is empty": (
        "causal_conv_with_state_kernel_size_one causal_conv_with_state_kernel_size_one_expanded"
    ),
    "a shape depends on values that the caller gives": (
        """
        affine_grid_2d_expanded affine_grid_2d_align_corners_expanded
        affine_grid_3d_expanded affine_grid_3d_align_corners_expanded
        blackmanwindow_expanded blackmanwindow_symmetric_expanded hammingwindow_expanded
        hammingwindow_symmetric_expanded
        hannwindow_expanded hannwindow_symmetric_expanded constantofshape_int_shape_zero
        slice_start_out_of_bounds
        center_crop_pad_crop_expanded center_crop_pad_pad_expanded
        center_crop_pad_crop_and_pad_expanded
        center_crop_pad_crop_axes_hwc_expanded
        center_crop_pad_crop_negative_axes_hwc_expanded
        center_crop_pad_crop_axes_chw_expanded
        range_float16_type_positive_delta_expanded range_bfloat16_type_positive_delta_expanded
        reduce_log_sum_desc_axes_expanded reduce_log_sum_asc_axes_expanded
        reduce_log_sum_negative_axes_expanded
        reduce_log_sum_exp_do_not_keepdims_example_expanded
        reduce_log_sum_exp_do_not_keepdims_random_expanded
        reduce_log_sum_exp_keepdims_example_expanded reduce_log_sum_exp_keepdims_random_expanded
        reduce_log_sum_exp_negative_axes_keepdims_example_expanded
        reduce_log_sum_exp_negative_axes_keepdims_random_expanded
        reduce_l2_do_not_keepdims_example_expanded reduce_l2_do_not_keepdims_random_expanded
        reduce_l2_keep_dims_example_expanded reduce_l2_keep_dims_random_expanded
        reduce_l2_negative_axes_keep_dims_example_expanded
        reduce_l2_negative_axes_keep_dims_random_expanded
        unique_sorted_without_axis unique_not_sorted_without_axis unique_sorted_with_axis
        unique_sorted_with_axis_3d
        unique_sorted_with_negative_axis unique_length_1
    """
    ),
}
"""Those of onnx 1.23."""

NOT_UNDERSTOOD = """
    ImageDecoder TfIdfVectorizer StringNormalizer StringConcat StringSplit RegexFullMatch
    LabelEncoder TreeEnsemble ArrayFeatureExtractor Binarizer OptionalHasElement OptionalGetElement
"""
"""Texts, pictures in files, and classical learning: planned with their bytes and no arithmetic."""


@pytest.mark.skipif(
    not onnx.__version__.startswith("1.23."), reason="the table is of the tests in onnx 1.23"
)
@pytest.mark.slow
def test_node_tests_of_onnx_load_with_the_shapes_of_their_results_or_are_refused_for_a_reason():
    cases = node_cases()
    refused = defaultdict(set)
    unknown = set()
    for case in cases:
        try:
            model = inline_functions(case.model)
            graph = graph_of(walk_network(model, LoadOptions()), case.name, case.name)
        except ModelError as error:
            reason = next(
                (reason for words, reason in REASONS.items() if words in str(error)), str(error)
            )
            refused[reason].add(case.name.removeprefix("test_"))
            continue
        unknown |= graph.unknown_ops.keys()
        results = case.data_sets[0][1] if case.data_sets else []
        for name, result in zip(graph.outputs, results, strict=False):
            assert graph.tensors[name].shape == getattr(
                result, "shape", graph.tensors[name].shape
            ), case.name
        assert all(
            op.elements or op.nests
            for op in graph.ops
            if op.op_class in (OpClass.PRODUCT, OpClass.REDUCTION)
        ), case.name
    assert refused == {reason: set(names.split()) for reason, names in CANNOT.items()}
    assert unknown == set(NOT_UNDERSTOOD.split())
    assert len(cases) - sum(map(len, refused.values())) == 1789
