//! Blocks of every GGUF type, as the package `gguf` of PyPI reads them.

use crate::golden;
use crate::ops::reference;
use nano_model::gguf::GgmlType;
use nano_worker::ops::Ops;
use nano_worker::weights::WeightTensor;

fn blocks(dtype: GgmlType) -> Vec<u8> {
    std::fs::read(golden::path(&format!("dequant/{dtype}.blocks"))).expect("golden blocks")
}

fn floats(dtype: GgmlType) -> Vec<f32> {
    let bytes =
        std::fs::read(golden::path(&format!("dequant/{dtype}.f32"))).expect("golden floats");
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect()
}

#[test]
fn reference_operations() {
    // An F32 is itself.
    for dtype in GgmlType::ALL.into_iter().filter(|&t| t != GgmlType::F32) {
        let expected = floats(dtype);
        let name = dtype.to_string();
        let shape = vec![expected.len()];
        let weight = WeightTensor::owned(name, dtype, shape, blocks(dtype)).expect("size");
        let tensor = reference().load_vector(&weight).expect("loads");
        let values: Vec<f32> = tensor.flatten_all().and_then(|t| t.to_vec1()).expect("f32");
        assert_eq!(values, expected, "{dtype}");
    }
}
