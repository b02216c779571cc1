//! Text to search terms, for German and English alike.

use std::collections::HashSet;

/// Longest word that is indexed, in characters; longer ones are cut.
const WORD_MAX: usize = 40;
/// Length of the beginning that inflected forms of a word are taken to share.
const STEM: usize = 5;

/// Words too common to search for, unless the query has nothing else.
const COMMON: &[&str] = &[
    "a", "about", "an", "and", "are", "at", "be", "can", "did", "do", "does", "for", "from", "have", "how",
    "i", "in", "is", "it", "me", "my", "of", "on", "or", "our", "that", "the", "to", "was", "we", "what",
    "when", "where", "which", "who", "with", "you", "your", "aber", "am", "auf", "bei", "bin", "das", "dem",
    "den", "der", "des", "die", "du", "ein", "eine", "einen", "er", "es", "fur", "hat", "ich", "im", "ist",
    "kann", "mein", "meine", "mich", "mir", "mit", "nicht", "sie", "sind", "uber", "um", "und", "uns",
    "unser", "von", "wann", "wer", "wie", "wir", "wo", "zu", "zum", "zur",
];

/// The words of a text: lower case, accents folded, so that "Schlüssel",
/// "SCHLÜSSEL" and "Schluessel" are one word.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        match c {
            // Combining accents of decomposed text, apostrophes inside of words.
            '\u{300}'..='\u{36f}' | '\'' | '\u{2019}' => {}
            // Scripts without spaces: each character is a word.
            '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' => {
                end(&mut word, &mut words);
                words.push(c.to_string());
            }
            c if c.is_alphanumeric() => fold(c, &mut word),
            _ => end(&mut word, &mut words),
        }
    }
    end(&mut word, &mut words);
    words
}

fn end(word: &mut String, words: &mut Vec<String>) {
    if word.is_empty() {
        return;
    }
    words.push(word.chars().take(WORD_MAX).collect());
    word.clear();
}

fn fold(c: char, word: &mut String) {
    let plain = match c {
        'à'..='å' | 'ā' | 'ă' | 'ą' => 'a',
        'ç' | 'ć' | 'č' => 'c',
        'è'..='ë' | 'ē' | 'ė' | 'ę' | 'ě' => return fold('e', word),
        'ì'..='ï' | 'ī' | 'ı' => 'i',
        'ñ' | 'ń' | 'ň' => 'n',
        'ò'..='ö' | 'ø' | 'ō' | 'ő' => 'o',
        'ù'..='ü' | 'ū' | 'ů' | 'ű' => 'u',
        'ý' | 'ÿ' => 'y',
        'ß' => return word.push_str("ss"),
        'æ' => 'a',
        'œ' => 'o',
        'ł' => 'l',
        'š' | 'ś' | 'ş' => 's',
        'ž' | 'ź' | 'ż' => 'z',
        'ř' => 'r',
        'ğ' => 'g',
        // "ae", "oe" and "ue" are how umlauts are typed without their keys.
        'e' if word.ends_with(['a', 'o', 'u']) => return,
        c => c,
    };
    word.push(plain);
}

/// What inflected forms of a word share: an ending off, then its beginning.
/// Crude, but the same for both languages and without tables.
pub(crate) fn stem(word: &str) -> String {
    const ENDINGS: &[&str] = &["ern", "en", "es", "er", "em", "ed", "s", "n", "e"];
    let count = word.chars().count();
    let ending = ENDINGS.iter().find(|e| word.ends_with(*e) && count >= e.len() + 3);
    let base = ending.map_or(word, |e| &word[..word.len() - e.len()]);
    base.chars().take(STEM).collect()
}

/// The words worth searching for, without repetition.
pub(crate) fn query(text: &str) -> Vec<String> {
    let mut seen = HashSet::new();
    let all: Vec<String> = words(text).into_iter().filter(|w| seen.insert(w.clone())).collect();
    let rare: Vec<String> = all.iter().filter(|w| !COMMON.contains(&w.as_str())).cloned().collect();
    if rare.is_empty() { all } else { rare }
}
