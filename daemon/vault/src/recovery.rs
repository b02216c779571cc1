//! The recovery code: 128 random bits that a person can write down.

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// Crockford's base 32: no I, L, O, U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// 26 characters of 5 bits hold 128 bits; four more check them.
const CHARACTERS: usize = 26;
const CHECKS: usize = 4;
const GROUP: usize = 5;

/// Why a recovery code was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// Too few or too many characters.
    #[error("a recovery code has 30 letters and digits")]
    Length,
    /// A character that no code has.
    #[error("a recovery code has no such character")]
    Character,
    /// A typing mistake.
    #[error("the recovery code has a typing mistake")]
    Check,
}

fn check(bits: &[u8; 16]) -> [u8; CHECKS] {
    let hash = Sha256::new_with_prefix(b"hearth-recovery").chain_update(bits).finalize();
    std::array::from_fn(|i| ALPHABET[usize::from(hash[i] & 31)])
}

/// The code for 128 random bits, in six groups of five.
pub fn recovery_code(random: [u8; 16]) -> Zeroizing<String> {
    let value = u128::from_be_bytes(random);
    // 130 bits: the first character holds the top three only.
    let digits = (0..CHARACTERS).rev().map(|i| ALPHABET[((value >> (5 * i)) & 31) as usize]);
    let all: Vec<u8> = digits.chain(check(&random)).collect();
    let groups: Vec<_> = all.chunks(GROUP).map(|g| String::from_utf8_lossy(g).into_owned()).collect();
    Zeroizing::new(groups.join("-"))
}

/// The bits of a code. Case, dashes and spaces do not matter; O counts as 0, I
/// and L as 1.
pub fn parse_recovery_code(code: &str) -> Result<Zeroizing<[u8; 16]>, RecoveryError> {
    let mut digits = Zeroizing::new(Vec::with_capacity(CHARACTERS + CHECKS));
    for c in code.chars().filter(|c| !c.is_whitespace() && *c != '-') {
        let c = match c.to_ascii_uppercase() {
            'O' => '0',
            'I' | 'L' => '1',
            c => c,
        };
        let digit = ALPHABET.iter().position(|a| char::from(*a) == c).ok_or(RecoveryError::Character)?;
        if digits.len() == CHARACTERS + CHECKS {
            return Err(RecoveryError::Length);
        }
        digits.push(digit as u8);
    }
    if digits.len() != CHARACTERS + CHECKS {
        return Err(RecoveryError::Length);
    }
    if digits[0] > 7 {
        return Err(RecoveryError::Check);
    }
    let value = digits[..CHARACTERS].iter().fold(0_u128, |v, d| (v << 5) | u128::from(*d));
    let bits = Zeroizing::new(value.to_be_bytes());
    let expected = check(&bits);
    let right = digits[CHARACTERS..].iter().zip(expected).all(|(d, c)| ALPHABET[usize::from(*d)] == c);
    if right { Ok(bits) } else { Err(RecoveryError::Check) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_people() {
        let code = recovery_code([0xA5; 16]);
        assert_eq!(code.len(), 35);
        for typed in [
            code.to_lowercase(),
            code.replace('-', " "),
            code.replace('-', "").replace('0', "o").replace('1', "l"),
        ] {
            assert_eq!(*parse_recovery_code(&typed).unwrap(), [0xA5; 16], "{typed}");
        }
        let mut caught = 0;
        let plain: Vec<char> = code.chars().filter(|c| *c != '-').collect();
        for at in 0..plain.len() {
            for other in ALPHABET {
                let mut typed = plain.clone();
                typed[at] = char::from(*other);
                if typed != plain {
                    caught += u32::from(parse_recovery_code(&typed.iter().collect::<String>()).is_err());
                }
            }
        }
        assert_eq!(caught, 30 * 31, "every single typing mistake");
        for (bad, error) in [
            ("", RecoveryError::Length),
            ("U", RecoveryError::Character),
            (&"0".repeat(31)[..], RecoveryError::Length),
        ] {
            assert_eq!(parse_recovery_code(bad), Err(error));
        }
    }
}
