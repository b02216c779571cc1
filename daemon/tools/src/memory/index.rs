//! BM25 over words and their stems.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::words;

const K1: f32 = 1.2;
const B: f32 = 0.75;
/// A word of the topic counts as often as this.
const TOPIC_WEIGHT: u32 = 3;
/// Most words of one query that are searched for.
const QUERY_WORDS_MAX: usize = 64;

/// An index of documents numbered from 0. It holds keyed hashes of terms, not
/// the text.
#[derive(Default)]
pub(crate) struct Index {
    hasher: RandomState,
    postings: HashMap<u64, Vec<Posting>>,
    lengths: Vec<u32>,
    total: u64,
}

struct Posting {
    document: u32,
    count: u32,
}

/// A document that shares a term with the query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hit {
    pub(crate) document: u32,
    pub(crate) score: f32,
}

impl Index {
    /// Adds the next document.
    pub(crate) fn add(&mut self, topic: Option<&str>, text: &str) {
        let document = self.lengths.len() as u32;
        let mut counts: HashMap<u64, u32> = HashMap::new();
        let topics = topic.map(words::words).unwrap_or_default();
        let weighted = topics.into_iter().map(|w| (w, TOPIC_WEIGHT));
        for (word, weight) in weighted.chain(words::words(text).into_iter().map(|w| (w, 1))) {
            for term in self.terms(&word) {
                *counts.entry(term).or_default() += weight;
            }
        }
        let length = counts.values().sum();
        for (term, count) in counts {
            self.postings.entry(term).or_default().push(Posting { document, count });
        }
        self.lengths.push(length);
        self.total += u64::from(length);
    }

    /// The documents that share a term with the query, best first; of equal
    /// ones the latest first.
    pub(crate) fn search(&self, query: &str, limit: usize) -> Vec<Hit> {
        let documents = self.lengths.len() as f32;
        let average = (self.total as f32 / documents.max(1.0)).max(1.0);
        let mut scores: HashMap<u32, f32> = HashMap::new();
        for word in words::query(query).iter().take(QUERY_WORDS_MAX) {
            for postings in self.terms(word).iter().filter_map(|t| self.postings.get(t)) {
                let found = postings.len() as f32;
                let rarity = (1.0 + (documents - found + 0.5) / (found + 0.5)).ln();
                for posting in postings {
                    let count = posting.count as f32;
                    let length = self.lengths[posting.document as usize] as f32;
                    let norm = K1 * (1.0 - B + B * length / average);
                    *scores.entry(posting.document).or_default() +=
                        rarity * count * (K1 + 1.0) / (count + norm);
                }
            }
        }
        let mut hits: Vec<Hit> =
            scores.into_iter().map(|(document, score)| Hit { document, score }).collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.document.cmp(&a.document)));
        hits.truncate(limit);
        hits
    }

    /// The word itself and its stem, as keyed hashes.
    fn terms(&self, word: &str) -> [u64; 2] {
        [self.hasher.hash_one((0u8, word)), self.hasher.hash_one((1u8, words::stem(word)))]
    }
}
