//! The file with the unlock header: two copies, written one after the other, so
//! that a cut in the middle of a change leaves one of them whole. Both hold the
//! newest state: a removed slot must not live on in an old copy.

use hearth_vault::{HEADER_MAX, Header};

use crate::disk::{Disk, read_all};
use crate::error::StoreError;

/// Name of the file.
pub(crate) const KEYS: &str = "keys";

/// Reads the newer of the valid copies. Needs no key.
pub fn read_header(disk: &dyn Disk) -> Result<Header, StoreError> {
    let file = disk.open(KEYS, false).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => StoreError::Missing(KEYS.to_owned()),
        _ => StoreError::io(KEYS, &e),
    })?;
    let bytes = read_all(&*file, 2 * HEADER_MAX).map_err(|e| StoreError::io(KEYS, &e))?;
    let first = Header::decode(&bytes);
    let second = bytes.get(HEADER_MAX..).map(Header::decode);
    match (first, second) {
        (Ok(a), Some(Ok(b))) => Ok(if b.generation > a.generation { b } else { a }),
        (Ok(a), _) => Ok(a),
        (_, Some(Ok(b))) => Ok(b),
        (Err(e), _) => Err(StoreError::vault(KEYS, e)),
    }
}

/// Writes a changed header over both copies.
pub fn write_header(disk: &dyn Disk, header: &Header) -> Result<(), StoreError> {
    write_to(disk, KEYS, header)
}

pub(crate) fn write_to(disk: &dyn Disk, name: &str, header: &Header) -> Result<(), StoreError> {
    let io = |e| StoreError::io(name, &e);
    let file = disk.open(name, true).map_err(io)?;
    let mut block = header.encode();
    if block.len() > HEADER_MAX {
        return Err(StoreError::TooLarge(block.len()));
    }
    block.resize(HEADER_MAX, 0);
    for copy in [0, HEADER_MAX as u64] {
        file.write_at(&block, copy).map_err(io)?;
        file.sync().map_err(io)?;
    }
    Ok(())
}
