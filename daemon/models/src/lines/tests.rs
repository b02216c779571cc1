use super::*;
use proptest::prelude::*;

fn split(pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>, TooLong> {
    let (mut lines, mut out) = (Lines::default(), Vec::new());
    for piece in pieces {
        lines.push(piece, |line| {
            out.push(line.to_vec());
            true
        })?;
    }
    out.push(lines.rest());
    Ok(out)
}

#[test]
fn line_ends() {
    let expected: Vec<Vec<u8>> = ["a", "", "ü", "last"].iter().map(|s| s.as_bytes().to_vec()).collect();
    assert_eq!(split(&["a\r\n\nü\nlast".as_bytes()]).unwrap(), expected);
    assert_eq!(split(&[b"a\r", b"\n\n\xc3", b"\xbc\nla", b"st"]).unwrap(), expected);
}

#[test]
fn limits() {
    let long = vec![b'x'; LINE_MAX];
    assert!(split(&[&long, b"\n"]).is_ok());
    assert_eq!(split(&[&long, b"x"]), Err(TooLong::Line));
    assert_eq!(split(&[&long, b"x\n"]), Err(TooLong::Line));
}

proptest! {
    #[test]
    fn cuts_do_not_matter(bytes in prop::collection::vec(prop::sample::select(b"ab\r\n".to_vec()), 0..80), size in 1usize..9) {
        let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
        prop_assert_eq!(split(&pieces), split(&[&bytes]));
    }
}
